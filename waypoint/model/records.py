"""What is stored about branches, captures and sessions."""

from typing import Annotated, Literal

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
Reason = Literal["exited", "stopped", "crashed", "lost", "checkpoint", "replaced", "forked"]
"""Why a capture was made: its session ended in one of four ways; it was asked for; its session was about to be replaced
by a restore; its session was forked."""

Aspect = Literal["files", "shell"]
"""What of a capture can be brought back by itself, into a session that goes on."""

Tier = Literal["live", "files"]
"""How faithfully a capture keeps processes: as they were (CRIU), or not at all."""


class FilesLayer(msgspec.Struct, frozen=True, kw_only=True):
    """`tree`: the sealed upper tree in the pool."""

    tree: str


class ProcessesLayer(msgspec.Struct, frozen=True, kw_only=True):
    """CRIU's images, in the capture's hot folder.

    `outside`: where the session had mounts from outside, in the order by which the images number them; the first are
    the `overlays`.
    `proc_readonly`, `env`, `nonce`: as in the session's runtime record. `frozen_us`: how long CRIU held the processes.
    `ports`: of the host's network, if the session shares that (`tcp 8000`).
    """

    size_bytes: int
    count: int
    programs: list[str]
    frozen_us: int
    criu: str
    overlays: list[str]
    outside: list[str]
    proc_readonly: list[str]
    env: dict[str, str]
    nonce: str
    ports: list[str] = []


class TerminalLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The scrollback, in the capture's hot folder. `end`: how many bytes the terminal had printed."""

    size_bytes: int
    rows: int
    cols: int
    end: int


class ShellLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the session's shell as data, in the file /run/waypoint/state of the captured files.

    A file of that name in a capture without this layer is a left-over.
    """

    size_bytes: int
    kind: Literal["bash", "zsh"]


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The aspects of a session that a capture has. Those that are None it has not."""

    files: FilesLayer
    processes: ProcessesLayer | None = None
    shell: ShellLayer | None = None
    terminal: TerminalLayer | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a capture was made. Process images need the same features of the processor, or more."""

    kernel: str
    architecture: str
    cpu: str
    cpu_features: list[str]
    boot_id: str


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a session, recorded.

    `parents`: the captures that it goes on from; one, or none for a branch's first. `exit`: the shell's status, where
    the session had ended and it is known. `paused_ms`: how long the session stood still for it. `degraded`: what is
    not as faithful as was asked for, in words. `clock`: CLOCK_BOOTTIME of the machine at that moment, in seconds.
    """

    id: str
    branch: str
    parents: list[str]
    created: float
    tier: Tier
    layers: Layers
    setting: Setting
    reason: Reason
    message: str = ""
    exit: int | None = None
    paused_ms: float | None = None
    degraded: list[str] = []
    machine: Machine | None = None
    clock: float = 0.0


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session that was started on a branch and not yet ended: what to seal if the machine goes down."""

    branch: str
    session: str
    tree: str
    started: float
    setting: Setting


RefKind = Literal["branch", "checkpoint"]


class Ref(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for. `capture`: a branch's tip (None until its first), a checkpoint's capture.

    `origin`: the tip that a branch was made with.
    """

    kind: RefKind
    capture: str | None
    origin: str | None = None
    created: float = 0.0


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation did to one name. None: there was, or is, no such name."""

    before: Ref | None
    after: Ref | None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the operation log. `sessions`: whether the named branches had a live session before, and after.

    `replaced`: the capture of what a restore in place has put aside; `only`: the aspect that was restored, if not all.
    `undoes`: the number of the operation that this one took back, `carried`: those of the operations by which it did.
    `undone`: whether a later one has taken this one back (and not been taken back itself).
    """

    number: int
    at: float
    verb: str
    moves: dict[str, Move]
    sessions: dict[str, tuple[bool, bool]] = {}
    replaced: str | None = None
    only: Aspect | None = None
    undoes: int | None = None
    carried: list[int] = []
    undone: bool = False


Number = Annotated[int, msgspec.Meta(ge=1)]
