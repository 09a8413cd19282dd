"""What the launcher is told: plans as values. The daemon makes them, the launcher carries them out."""

from collections.abc import Sequence
from typing import Literal

import msgspec

RUN_FOLDER = "run/waypoint"  # of a session: what it shares with the daemon


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """One overlay of a session. `target`: its place in the session. `lowers`: host folders, topmost first."""

    target: str
    lowers: list[str]
    upper: str
    work: str


class BindMount(msgspec.Struct, frozen=True, kw_only=True):
    """A host path bound into the session. `device_nodes`: nodes in it may be opened."""

    source: str
    target: str
    readonly: bool
    device_nodes: bool = False


class MemoryMount(msgspec.Struct, frozen=True, kw_only=True):
    """A tmpfs of the session's own, for everybody to write to.

    `content`: the host folder that it begins with; "": none. Mounted from outside, so that CRIU need not call tar:
    what is in it is copied by whoever captures.
    """

    target: str
    content: str = ""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    uid: int
    gid: int
    groups: list[int]


class StartSpec(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start a session: its mounts in order, then its first process."""

    @property
    def outside(self) -> list[str]:
        """Where it has mounts from outside, in the order that numbers them in images."""
        groups: tuple[Sequence[Overlay | BindMount | MemoryMount], ...] = (self.overlays, self.binds, self.memory)
        return [mount.target for group in groups for mount in group]

    cgroup: str
    merged: str
    overlays: list[Overlay]
    binds: list[BindMount]
    memory: list[MemoryMount]
    proc_readonly: list[str]
    net: Literal["private", "host", "none"]
    identity: Identity
    argv: list[str]
    env: dict[str, str]
    cwd: list[str]
    rows: int
    cols: int


class EnterSpec(msgspec.Struct, frozen=True, kw_only=True, tag="enter"):
    """Start one more process in a live session. Three fds come with it (stdin, stdout, stderr), none with `tty`."""

    pid: int
    cgroup: str
    identity: Identity
    argv: list[str]
    env: dict[str, str]
    cwd: list[str]
    tty: bool
    rows: int
    cols: int


CRIU_SOCKET_FD = 3  # where a CRIU that the launcher has started is spoken to


class CriuBeside(msgspec.Struct, frozen=True, kw_only=True, tag="beside"):
    """Start a CRIU that is to dump the session with init `pid`.

    Two fds come with it: its socket, and where its words go. `run`: the host folder that becomes its /run. `cgroup`:
    where it runs.
    """

    pid: int
    run: str
    cgroup: str
    argv: list[str]
    env: dict[str, str]


class CriuInto(msgspec.Struct, frozen=True, kw_only=True, tag="into"):
    """Start a CRIU that is to restore a session on `ground`, of which the program is not looked at. Fds as above."""

    ground: StartSpec
    run: str
    argv: list[str]
    env: dict[str, str]


LaunchSpec = StartSpec | EnterSpec | CriuBeside | CriuInto


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the pid of the new process as the host sees it, or the call that failed."""

    pid: int = 0
    error: str = ""
    errno: int = 0
    path: str = ""
