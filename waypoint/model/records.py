"""The records about branches, captures, sessions and operations that the store keeps."""

from collections.abc import Collection
from typing import Any, Literal

import msgspec

from waypoint.model.details.applied_record import Applied
from waypoint.model.details.attached_records import AttachedLayer


class User(msgspec.Struct, frozen=True, kw_only=True):
    """The user as whom a session's processes run. The numbers are stored because another base may not know the name."""

    name: str
    uid: int
    gid: int
    groups: list[int]
    home: str
    shell: str


SHIFTED_IDS = 65_536
"""How many ids, from 0 on, every shifted session has: those that a machine gives to its own users and groups."""

MAX_MAP_BYTES = 4095
"""Of the text of a map of ids, the kernel takes less than a page, in one write (user_namespaces(7))."""
_MAX_OWN = 60  # two lines each: as many fit into a map


class IdMap(msgspec.Struct, frozen=True, kw_only=True):
    """Which ids of the host the ids of a session's users and groups are (user_namespaces(7)); the same for both kinds.

    `first` 0: each id is itself. Else the session's ids are *shifted*: its first SHIFTED_IDS ids are the host's from
    `first` on, those of `more`, in their order, are the next ones, and no other id exists in the session. In its files
    on disk, which come in through idmapped mounts, every id is the session's own.
    """

    first: int = 0
    more: tuple[int, ...] = ()

    @property
    def is_shifted(self) -> bool:
        return self.first != 0

    def outside(self, number: int) -> int:
        """The host's id for the session's `number`. Raises ValueError if the session has no such id."""
        if not self.is_shifted:
            return number
        return self.first + (number if number < SHIFTED_IDS else SHIFTED_IDS + self.more.index(number))

    def inside(self, number: int) -> int:
        """The session's id for the host's `number`; NOBODY, as the kernel tells, if the session has no such id."""
        place = number - self.first
        if not self.is_shifted or 0 <= place < SHIFTED_IDS:
            return place
        return self.more[place - SHIFTED_IDS] if 0 <= place - SHIFTED_IDS < len(self.more) else NOBODY

    @property
    def last(self) -> int:
        """The session's id that is the last on the host, of a shifted session."""
        return self.more[-1] if self.more else SHIFTED_IDS - 1

    def lines(self) -> str:
        """The content of uid_map and gid_map."""
        if not self.is_shifted:
            return "0 0 4294967295\n"
        more = (f"{number} {self.outside(number)} 1\n" for number in self.more)
        return f"0 {self.first} {SHIFTED_IDS}\n{''.join(more)}"

    def lines_with_only(self, own: Collection[int]) -> str:
        """The content of uid_map, or gid_map, for an idmapped mount that shows the files of `own`, ids of the session,
        as theirs, and the files of all other ids as a stranger's: nobody in the session has power over them, not even
        its root. If `own` has more than _MAX_OWN ids, the highest are left out. The session's ids are shifted.
        """
        lines, behind = [], 0  # strangers keep the host's ids, which no session with shifted ids has
        for number in sorted(one for one in {*own} if one < SHIFTED_IDS or one in self.more)[:_MAX_OWN]:
            if behind < number and behind < self.first:
                lines.append(f"{behind} {behind} {min(number, self.first) - behind}\n")
            lines.append(f"{number} {self.outside(number)} 1\n")
            behind = number + 1
        if behind < self.first:
            lines.append(f"{behind} {behind} {self.first - behind}\n")
        return "".join(lines)


HOST_IDS = IdMap()
NOBODY = 65_534


class Bind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A path of the host that is mounted in the session as it is: a restore does not bring its files back.

    `as_user`: with the rights over its files that the session's user has on the host, and no others.
    """

    source: str
    target: str
    readonly: bool
    as_user: bool = False


Allowance = Literal["userns"]
"""What a session may do beyond the usual. `userns`: make namespaces and mounts of its own, as a sandbox does in it."""

Seccomp = Literal["default", "userns", "none"]
"""The filter of system calls around a session's processes: the usual one, that for what is allowed `userns`, none."""


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much of the machine a session may use. `memory`, `disk`: bytes. `cpus`: processors, such as 1.5. `pids`:
    processes and threads. None, in a setting: what is usual (launch/ground/limits.py); of a live session: no limit.
    """

    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk: int | None = None


class Setting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The properties with which a session is started. Kept with each capture, so that a branch goes on with them.

    `base`: the root file system below the session. `cwd`: the folder in which the shell starts. `env`: the variables
    taken from the caller. `command`: run in place of a shell, if it is not empty. `shell`: the path of the shell that
    was asked for; empty: the user's. `allow`: beyond the usual. `limits`: as asked for. `allow_net`: all it may reach.
    `publish`: ports that lead into it, `IP:HOST:INNER[/udp]`.
    """

    base: str
    binds: list[Bind]
    net: Literal["private", "host", "none"]
    user: User
    cwd: str
    env: dict[str, str]
    command: list[str]
    shell: str = ""
    allow: list[Allowance] = []
    limits: SessionLimits = SessionLimits()
    allow_net: list[str] = []
    publish: list[str] = []


EndReason = Literal["exited", "stopped", "crashed", "lost"]
Reason = Literal["exited", "stopped", "crashed", "lost", "checkpoint", "replaced", "forked"]
"""Why a capture was made. Its session ended: `exited` (its shell was left), `stopped` (a request), `crashed` (its
processes were killed) or `lost` (the machine went down). `checkpoint`: a client asked for the capture. `replaced`: a
restore was about to replace the session or an aspect of it. `forked`: a copy was to be made on another branch."""

Aspect = Literal["files", "shell"]
"""A part of a capture that can be brought back by itself, into a session that goes on."""

Tier = Literal["live", "respawn", "files"]
"""How faithfully a capture keeps processes: as they were (CRIU), so that the programs can be started again, or not at
all."""


class FilesLayer(msgspec.Struct, frozen=True, kw_only=True):
    """`tree`: the sealed upper tree in the pool."""

    tree: str


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """What is fixed at a session's start: it is in CRIU's images, so a session that comes back has it as well.

    `overlays`: where overlays are mounted in the session. `outside`: where file systems from outside are mounted in it,
    in the order of mounting, by which the images number them; the first of them are the `overlays`. `proc_readonly`:
    what is read-only in its /proc. `masked`: what it sees nothing of in its /proc and /sys; earlier versions kept no
    note of that. `env`: the environment of its shell. `nonce`: the secret word in the marks of its shell. `ids`: the
    map of its ids. `seccomp`: the filter around its processes.
    """

    overlays: list[str]
    outside: list[str]
    proc_readonly: list[str]
    masked: list[str] = []
    env: dict[str, str]
    nonce: str
    ids: IdMap = HOST_IDS
    seccomp: Seccomp = "none"

    def fixed_fields(self) -> dict[str, Any]:
        """The fields above, by name, to make another record with them."""
        return {name: getattr(self, name) for name in Fixed.__struct_fields__}


class ProcessesLayer(Fixed, frozen=True, kw_only=True):
    """CRIU's images, in the capture's hot folder.

    `count`, `programs`: the number and the names of the processes. `frozen_us`: how long CRIU held the processes, in
    microseconds. `criu`: the version that made the images. `ports`: the ports of the host's network that the processes
    had, if the session shares this network (`tcp 8000`); without those of connections, which are closed in copies.
    `hard_limits`: the highest of the processes', by kind (RLIMIT_NOFILE); -1: none. Earlier versions did not note them.
    """

    size_bytes: int
    count: int
    programs: list[str]
    frozen_us: int
    criu: str
    ports: list[str] = msgspec.field(default_factory=list)
    hard_limits: dict[str, int] = msgspec.field(default_factory=dict)


class ProgramsLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of what ran, in the capture's hot folder. `programs`: the command lines of what is started again,
    without secrets. `lost`: of what is not, each with why. `ended`: how many a live capture has not kept alive.
    """

    size_bytes: int
    programs: list[str]
    lost: list[str] = []
    ended: int = 0


class TerminalLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The scrollback, in the capture's hot folder. `end`: the number of bytes that the terminal had printed."""

    size_bytes: int
    rows: int
    cols: int
    end: int


ShellMoment = Literal["now", "prompt"]
"""Of which moment the state of a shell is: that of the capture, or its last prompt, as something ran in it, or it had
ended."""


class ShellLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the session's shell as data, in the file `file` of /run/waypoint in the captured files.

    In a capture without this layer, files with such names are left-overs to be ignored.
    """

    size_bytes: int
    kind: Literal["bash", "zsh"]
    file: str = "state"
    moment: ShellMoment = "now"


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The aspects of a session that a capture has. A layer that is None was not captured. `attached`: by kind."""

    files: FilesLayer
    processes: ProcessesLayer | None = None
    programs: ProgramsLayer | None = None
    shell: ShellLayer | None = None
    terminal: TerminalLayer | None = None
    attached: dict[str, AttachedLayer] | msgspec.UnsetType = msgspec.UNSET  # so that others' ids stay as they are


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine on which a capture was made. `system`: the name of the session's base (os-release(5)), if known."""

    kernel: str
    architecture: str
    cpu: str
    cpu_features: list[str]
    boot_id: str
    system: str = ""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a session, recorded.

    `parents`: the ids of the captures that this one goes on from: one, or none for the first of a branch. `created`: in
    seconds since the epoch. `exit`: the shell's exit status, if the session had ended and the status is known.
    `paused_ms`: how long the session stood still, in milliseconds; None if the session had ended. `degraded`: in words,
    what was kept less faithfully than it might be. `folder`: that in which the session's shell was, "" if that is not
    known, or is no printable text. `clock`: CLOCK_BOOTTIME of the machine at that moment, in seconds.
    `branch_created`: `created` of the branch's ref, by which the branch is known when it has been renamed; 0.0 in
    captures that are older than this field.
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
    folder: str = ""
    clock: float = 0.0
    branch_created: float = 0.0


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What of a capture changes; its record never does. `image`: its id in the store, None until it is there. `parts`:
    the image's folders with their digests in hex, none of earlier versions. `durable`: it survives a power loss.
    `removed`: its content was removed from the disk; the record stays as long as a kept capture descends from it.
    """

    image: str | None = None
    durable: bool = False
    removed: bool = False
    parts: tuple[tuple[str, str], ...] = ()


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
    checkpoint's capture. `origin`: the id of the tip with which the branch was made. `created`: since the epoch, in s.
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
    """What was kept when a live session, or one aspect of it, was replaced: `capture`, of the session before. `only`:
    the aspect that was replaced in a session that went on; None: the whole session was replaced.
    """

    capture: str
    only: Aspect | None = None


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """A process session (setsid(2)), such as a terminal's: its leader's pid, and start, in clock ticks since boot."""

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
    and sessions. `expired`: whether what its undo needs may have been removed. `applied`: what it did to the machine.
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
    applied: Applied | None = None
