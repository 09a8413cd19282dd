"""What is stored about branches, captures and sessions."""

from typing import Literal

import msgspec


class User(msgspec.Struct, frozen=True, kw_only=True):
    """Who a session's processes run as; numbers, since a base directory may not know the name."""

    name: str
    uid: int
    gid: int
    groups: list[int]
    home: str
    shell: str


class Bind(msgspec.Struct, frozen=True, kw_only=True):
    """A host path that is present in the session as it is, outside of what is rolled back."""

    source: str
    target: str
    readonly: bool


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How a session was asked for. Kept with each capture, so that a branch goes on as it was."""

    base: str
    binds: list[Bind]
    net: Literal["private", "host", "none"]
    user: User
    cwd: str
    env: dict[str, str]
    command: list[str]


EndReason = Literal["exited", "stopped", "crashed", "lost"]


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """One moment, recorded. In this version: the files of a session that ended.

    `tree` names the sealed upper tree in the pool. `exit` is the shell's status, where it is known.
    """

    id: str
    branch: str
    parent: str | None
    created: float
    tier: Literal["files"]
    tree: str
    setting: Setting
    reason: EndReason
    exit: int | None


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session that was started on a branch and not yet ended: what to seal if the machine goes down."""

    branch: str
    session: str
    tree: str
    started: float
    parent: str | None
    setting: Setting
