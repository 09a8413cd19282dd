"""The records about branches, captures, sessions and operations that the store keeps."""

from typing import Literal

import msgspec


class User(msgspec.Struct, frozen=True, kw_only=True):
    """The user as whom a session's processes run. The numbers are stored because another base may not know the name."""

    name: str
    uid: int
    gid: int
    groups: list[int]
    home: str
    shell: str


class Bind(msgspec.Struct, frozen=True, kw_only=True):
    """A path of the host that is mounted in the session as it is: a restore does not bring its files back."""

    source: str
    target: str
    readonly: bool


class Setting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The properties with which a session is started. Kept with each capture, so that a branch goes on with them.

    `base`: the root file system below the session. `cwd`: the folder in which the shell starts. `env`: the variables
    taken from the caller. `command`: run in place of a shell, if it is not empty. `shell`: the path of the shell that
    was asked for; empty: that of the user.
    """

    base: str
    binds: list[Bind]
    net: Literal["private", "host", "none"]
    user: User
    cwd: str
    env: dict[str, str]
    command: list[str]
    shell: str = ""


EndReason = Literal["exited", "stopped", "crashed", "lost"]
Reason = Literal["exited", "stopped", "crashed", "lost", "checkpoint", "replaced", "forked"]
"""Why a capture was made. Its session ended: `exited` (its shell was left), `stopped` (a request), `crashed` (its
processes were killed) or `lost` (the machine went down). `checkpoint`: a client asked for the capture. `replaced`: a
restore was about to replace the session or an aspect of it. `forked`: the session was forked."""

Aspect = Literal["files", "shell"]
"""A part of a capture that can be brought back by itself, into a session that goes on."""

Tier = Literal["live", "files"]
"""How faithfully a capture keeps processes: as they were (CRIU), or not at all."""


class FilesLayer(msgspec.Struct, frozen=True, kw_only=True):
    """`tree`: the sealed upper tree in the pool."""

    tree: str


class ProcessesLayer(msgspec.Struct, frozen=True, kw_only=True):
    """CRIU's images, in the capture's hot folder.

    `count`, `programs`: the number and the names of the processes. `frozen_us`: how long CRIU held the processes, in
    microseconds. `criu`: the version that made the images. `outside`: where file systems from outside were mounted in
    the session, in the order by which the images number them; the first are the `overlays`. `proc_readonly`, `env`,
    `nonce`: as in the session's runtime record. `ports`: the ports of the host's network that the processes had, if
    the session shares this network (`tcp 8000`).
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
    """The scrollback, in the capture's hot folder. `end`: the number of bytes that the terminal had printed."""

    size_bytes: int
    rows: int
    cols: int
    end: int


class ShellLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the session's shell as data, in the file /run/waypoint/state of the captured files.

    In a capture without this layer, a file with this name is a left-over to be ignored.
    """

    size_bytes: int
    kind: Literal["bash", "zsh"]


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The aspects of a session that a capture has. A layer that is None was not captured."""

    files: FilesLayer
    processes: ProcessesLayer | None = None
    shell: ShellLayer | None = None
    terminal: TerminalLayer | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine on which a capture was made. Process images need a processor with the same features, or more."""

    kernel: str
    architecture: str
    cpu: str
    cpu_features: list[str]
    boot_id: str


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a session, recorded.

    `parents`: the ids of the captures that this one goes on from: one, or none for the first of a branch. `created`: in
    seconds since the epoch. `exit`: the shell's exit status, if the session had ended and the status is known.
    `paused_ms`: how long the session stood still, in milliseconds; None if the session had ended. `degraded`: in words,
    what was kept less faithfully than it might be. `clock`: CLOCK_BOOTTIME of the machine at that moment, in seconds.
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


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a capture that change after its record was written; the record itself never changes.

    `image`: the capture's id in the store; None until the capture is there. `durable`: whether the capture survives a
    power loss. `removed`: whether its content was removed from the disk; the record of such a capture stays as long as
    a kept capture descends from it.
    """

    image: str | None = None
    durable: bool = False
    removed: bool = False


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The note that a tree, folder or capture is being made which outlives the daemon and is on no other record yet.

    `purpose`: what is being made, in words. `since`: when the note was written, in seconds since the epoch.
    """

    purpose: str
    since: float


class StoreIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a names.db is. `id`: random, made with the database. `opened`: how many daemons have opened it; a copy that
    was put back has a lower number than the places that were used since.
    """

    id: str
    opened: int


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session that was started on a branch and has not ended. If the machine goes down, the next daemon seals `tree`.

    `session`: its id. `tree`: the name of its upper tree. `started`: in seconds since the epoch.
    """

    branch: str
    session: str
    tree: str
    started: float
    setting: Setting


RefKind = Literal["branch", "checkpoint"]


class Ref(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for. `capture`: the id of the branch's tip (None before its first capture), or of the
    checkpoint's capture. `origin`: the id of the tip with which the branch was made. `created`: in seconds since the
    epoch.
    """

    kind: RefKind
    capture: str | None
    origin: str | None = None
    created: float = 0.0


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation did to one name: the name's ref `before` and `after`. None: the name did not exist."""

    before: Ref | None
    after: Ref | None


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """What was kept when a live session, or one aspect of it, was replaced.

    `capture`: the id of the capture of the session before. `only`: the aspect that was replaced in a session that went
    on; None: the whole session was replaced.
    """

    capture: str
    only: Aspect | None = None


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """A process session (setsid(2)), such as that of a terminal: its leader's pid, and when the leader was started, in
    clock ticks since boot.
    """

    pid: int
    start: int


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asked for an operation.

    `uid`: the user; None for a process inside the session on `branch`. `login`: where the caller was logged in, None if
    that is not known. `branch`: the branch that the caller works on ($WAYPOINT_BRANCH); None: on no one in particular.
    """

    uid: int | None = None
    login: Login | None = None
    branch: str | None = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the operation log.

    `at`: in seconds since the epoch. `moves`: by name. `sessions`: by branch, whether it had a live session before, and
    after. `aside`: by branch, what was kept where a live session was replaced. `by`: who asked for it, None if nobody
    did (a shell that ended). `undoes`: the number of the operation that this one took back. `undone`: whether this
    operation was taken back (and not done again by another undo). `note`: in words, what it did besides moving names
    and sessions. `expired`: whether what its undo needs may have been removed.
    """

    number: int
    at: float
    verb: str
    moves: dict[str, Move]
    sessions: dict[str, tuple[bool, bool]] = {}
    aside: dict[str, Aside] = {}
    by: Caller | None = None
    undoes: int | None = None
    undone: bool = False
    note: str = ""
    expired: bool = False
