"""The records about branches, captures, sessions and operations in the store."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import msgspec

from waypoint.model.conditions import Degradation
from waypoint.model.ids import ID_PATTERN, is_id
from waypoint.model.names import MAX_NAME_BYTES, NAME_PATTERN
from waypoint.model.paths import OWN_FOLDER

Id = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]
"""An id, checked whenever a record is decoded: ids become names of files and folders, and a home's database may come
from elsewhere."""

Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN, max_length=MAX_NAME_BYTES)]
"""The name of a branch, checked like an Id."""

LiveName = Annotated[
    str,
    msgspec.Meta(
        pattern=NAME_PATTERN.replace("^", "^((proof|standby) )?", 1), max_length=MAX_NAME_BYTES + len("standby ")
    ),
]
"""The name of the branch of a live session; `proof ID` of a trial restore, `standby ID` of a copy that stands ready
(session/birth).
"""

LayerKind = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}(?![\s\S])")]
"""The kind of a layer, which becomes the name of a folder."""


class User(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a session's processes. The numbers are stored because another base may not know the name."""

    name: str
    uid: int
    gid: int
    groups: list[int]
    home: str
    shell: str


SHIFTED_IDS = 65_536
"""The number of ids, from 0 on, that every shifted session has: those that hosts give to their own users."""

MAX_MAP_BYTES = 4095
"""The kernel takes less than a page for a map of ids, in one write (user_namespaces(7))."""

_MAX_OWN = 60  # two lines each: as many fit into a map


class IdMap(msgspec.Struct, frozen=True, kw_only=True):
    """Maps the ids of a session's users and groups to ids of the host (user_namespaces(7)).

    `first` 0: the same ids. Else the ids are *shifted*: the first SHIFTED_IDS ids map to the host's from `first` on,
    those in `more` to the next ones, and the session has no other ids. Files on disk keep the session's ids (idmapped
    mounts).
    """

    first: int = 0
    more: tuple[int, ...] = ()

    @property
    def is_shifted(self) -> bool:
        return self.first != 0

    def outside(self, number: int) -> int:
        """Return the host's id for the session's `number`. Raises ValueError if the session has no such id."""
        if not self.is_shifted:
            return number
        return self.first + (number if number < SHIFTED_IDS else SHIFTED_IDS + self.more.index(number))

    def inside(self, number: int) -> int:
        """Return the session's id for the host's `number`; NOBODY, as the kernel reports, if there is none."""
        place = number - self.first
        if not self.is_shifted or 0 <= place < SHIFTED_IDS:
            return place
        return self.more[place - SHIFTED_IDS] if 0 <= place - SHIFTED_IDS < len(self.more) else NOBODY

    @property
    def last(self) -> int:
        """The id of a shifted session that is mapped last."""
        return self.more[-1] if self.more else SHIFTED_IDS - 1

    def lines(self) -> str:
        """Return the content of uid_map and gid_map."""
        if not self.is_shifted:
            return "0 0 4294967295\n"
        more = (f"{number} {self.outside(number)} 1\n" for number in self.more)
        return f"0 {self.first} {SHIFTED_IDS}\n{''.join(more)}"

    def lines_with_only(self, own: Collection[int]) -> str:
        """Return the uid_map or gid_map of an idmapped mount that maps only the files of `own` (ids of a shifted
        session); all other files belong to an unmapped id, over which not even the session's root has power. At most
        _MAX_OWN ids: the highest are dropped.
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
    """A host path mounted in the session. A restore does not change its files.

    `as_user`: access only with the host permissions of the session's user.
    """

    source: str
    target: str
    readonly: bool
    as_user: bool = False


Allowance = Literal["userns"]
"""What a session may do in addition: `userns`: create user namespaces, and mounts in them, as sandboxes do (bubblewrap,
Chromium's).
"""

Seccomp = Literal["default", "userns", "none"]
"""The system call filter of a session's processes."""


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resource limits. `memory`, `disk`: bytes. `cpus`: processors, such as 1.5. `pids`: processes and threads. None,
    in a setting: the default (launch/ground/limits.py); of a live session: unlimited.
    """

    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk: int | None = None


class Published(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A port of the session, and the port of the machine from which connections are forwarded to it; 0: any free one.
    `address`: of the machine; "": its loopback addresses.
    """

    session: int
    host: int = 0
    address: str = ""


_PINNED = f"/{OWN_FOLDER}/base/"
NO_BASE = f"/{OWN_FOLDER}/none"
"""`Setting.base` of the capture that is a pinned base itself."""


def base_of(capture_id: str) -> str:
    """`Setting.base` of the sessions on the pinned base with this id. No folder has this path: the files lie in the
    pool, at another place in each home (upper/layout.py).
    """
    return f"{_PINNED}{capture_id}"


def pinned_id(base: str) -> str | None:
    """The id of the pinned base that `base`, a `Setting.base`, means; None: a folder of the machine."""
    found = base.removeprefix(_PINNED)
    return found if found != base and is_id(found) else None


ImageText = Annotated[str, msgspec.Meta(max_length=1 << 16, pattern=r"\A[^\0]*\Z")]


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the container image of a base wants its programs to be started (OCI image specification, config.md).

    `env`: NAME=VALUE each. `user`: name or number, perhaps with `:GROUP`. `exposed_ports`: PORT/tcp or PORT/udp each.
    """

    env: list[ImageText] = []
    working_dir: ImageText = ""
    user: ImageText = ""
    entrypoint: list[ImageText] = []
    cmd: list[ImageText] = []
    exposed_ports: list[ImageText] = []


class Setting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a session, kept with each capture so that restored sessions have them, too.

    `base`: the root file system below the session: a folder of the machine, or what `base_of` returns. `cwd`: where the
    shell starts. `env`: variables taken from the caller. `command`: runs in place of a shell, unless empty. `shell`:
    the requested path; "": the user's shell. `limits`: as requested. `allow_net`: if not empty, the only reachable
    names and networks. `auto`: points are made at prompts. `idle_park`, `ttl`: seconds after which an unused session,
    and any session, is parked; 0: never. `since`: when the time of `ttl` has begun, in seconds since the epoch.
    `publish`: of a live session as they are, else as they were. `base_name`: the name by which a pinned base was asked
    for. `image`: of the container image from which the base was made.
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
    auto: bool = False
    idle_park: float = 0.0
    ttl: float = 0.0
    since: float = 0.0
    publish: list[Published] = []
    base_name: Name | Literal[""] = ""
    image: ImageConfig | None = None

    @property
    def pinned(self) -> str | None:
        """The id of the session's pinned base; None: it runs on a folder of the machine."""
        return pinned_id(self.base)

    @property
    def base_text(self) -> str:
        """The base for people: a path, or the name of a pinned base and the beginning of its id."""
        return self.base if self.pinned is None else f"{self.base_name} ({self.pinned[:12]})".lstrip()


EndReason = Literal["exited", "stopped", "crashed", "lost"]
Reason = Literal[
    "exited", "stopped", "crashed", "lost", "checkpoint", "replaced", "forked", "attached", "idle", "expired"
]
"""Why a capture was made. The session ended: `exited` (its shell exited), `stopped` (by request), `crashed` (its
processes were killed), `lost` (the host went down). `checkpoint`: by request. `replaced`: before a restore. `forked`:
for a fork. `attached`: a copy of another capture, to which a layer was attached. The session was parked: `idle` (nobody
used it), `expired` (its time to live has passed)."""

Aspect = Literal["files", "shell"]
"""A part of a capture that can be restored alone, into a running session."""

Tier = Literal["live", "respawn", "files"]
"""How a capture keeps processes: `live`: as they were (CRIU); `respawn`: command lines to start again; `files`: not."""


class FilesLayer(msgspec.Struct, frozen=True, kw_only=True):
    """`tree`: the sealed upper tree in the pool, whose size is measured on request."""

    KIND: ClassVar[str] = "files"
    tree: str


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that are fixed at a session's start: CRIU's images contain them, so a restored session has them, too.

    `overlays`: the mount points of overlays. `outside`: the mount points of file systems from outside, in mount order,
    by which the images number them; the `overlays` come first. `proc_readonly`: read-only paths in /proc. `masked`:
    hidden paths in /proc and /sys; empty in old captures. `env`: the environment of the shell. `nonce`: the secret word
    in the shell's marks.
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
        """Return the fields above, by name, to make another record with them."""
        return {name: getattr(self, name) for name in Fixed.__struct_fields__}


class LeftOut(msgspec.Struct, frozen=True, array_like=True):
    """A setting of a process that CRIU's images lack. `pid`: of the process, as seen inside. `number`: of the thread,
    as seen inside, or of the descriptor. `name`, `value`: as in processes/left_out.py.
    """

    pid: int
    number: int
    name: str
    value: str


class ProcessesLayer(Fixed, frozen=True, kw_only=True):
    """CRIU's images, in the capture's hot folder.

    `count`, `programs`: the number and the names of the processes. `frozen_us`: how long CRIU froze them, in
    microseconds. `criu`: its version. `ports`: ports of the host's network that the processes hold (`tcp 8000`), if the
    session shares it; without those of connections, which copies close. `hard_limits`: the highest of the processes'
    hard limits, by kind (RLIMIT_NOFILE); -1: none; empty in old captures. `tasks`: the number of threads; `watchers`,
    `watches`: of inotify instances and of the files that they watch; 0 in old captures. `awaited`: CRIU has not dumped
    the processes yet, which stay frozen until then; `size_bytes` is then an estimate (capture/dumping_later.py).
    `left_out`: settings that a restore makes again.
    """

    KIND: ClassVar[str] = "processes"
    size_bytes: int
    count: int
    programs: list[str]
    frozen_us: int
    criu: str
    ports: list[str] = msgspec.field(default_factory=list)
    hard_limits: dict[str, int] = msgspec.field(default_factory=dict)
    tasks: int = 0
    watchers: int = 0
    watches: int = 0
    awaited: bool = False
    left_out: list[LeftOut] = []


class ProgramsLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of running programs, in the capture's hot folder; missing in live captures of earlier versions.

    `programs`: command lines to start again, without secrets. `lost`: those that are not started again, with the
    reason.
    """

    KIND: ClassVar[str] = "programs"
    size_bytes: int
    programs: list[str]
    lost: list[Degradation] = []


class TerminalLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The scrollback, in the capture's hot folder. `end`: the number of bytes that the terminal had printed."""

    KIND: ClassVar[str] = "terminal"
    size_bytes: int
    rows: int
    cols: int
    end: int


ShellMoment = Literal["now", "prompt"]
"""Time of the shell state: `now`: the capture; `prompt`: the last prompt, as a command was running or the shell had
ended.
"""


class ShellLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the session's shell, in `file` of /run/waypoint in the captured files. In a capture without this
    layer such files are stale.
    """

    KIND: ClassVar[str] = "shell"
    size_bytes: int
    kind: Literal["bash", "zsh"]
    file: str = "state"
    moment: ShellMoment = "now"


class AttachedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder that the user has attached to a capture, under a kind of the user's choice (model, cache,
    trace). `source`: its path then. `files`: the number of its files.
    """

    size_bytes: int
    type: Literal["file", "directory"]
    source: str
    files: int
    attached: Literal[True] = True


L = TypeVar("L", FilesLayer, ProcessesLayer, ProgramsLayer, TerminalLayer, ShellLayer)
KnownLayer = FilesLayer | ProcessesLayer | ProgramsLayer | TerminalLayer | ShellLayer
Layers = dict[LayerKind, dict[str, Any]]
"""The records of a capture's layers as JSON objects, by kind. `Capture.layer` gives one its type."""


def layers_of(*found: KnownLayer | None) -> Layers:
    """The records of these layers, without those that are None."""
    return {one.KIND: msgspec.to_builtins(one) for one in found if one is not None}


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The host of a capture. Process images need a processor with at least the same features."""

    kernel: str
    architecture: str
    cpu: str
    cpu_features: list[str]
    boot_id: str


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A capture.

    `parents`: ids of the captures before it: one, or none for the first of a branch. `created`: seconds since the
    epoch. `exit`: the shell's exit status, if the session had ended and it is known. `paused_ms`: how long the session
    was paused; None if it had ended. `degraded`: what was kept less faithfully than possible. `folder`: the shell's
    working folder; "" if unknown or unprintable. `clock`: CLOCK_BOOTTIME of the host, in seconds. `branch_created`:
    `created` of the branch's ref, which identifies a renamed branch; 0.0 in old captures. `automatic`: it was taken for
    a point (Point), or because nobody used the session.
    """

    id: Id
    branch: Name
    parents: list[Id]
    created: float
    tier: Tier
    layers: Layers
    setting: Setting
    reason: Reason
    message: str = ""
    exit: int | None = None
    paused_ms: float | None = None
    degraded: list[Degradation] = []
    machine: Machine | None = None
    folder: str = ""
    clock: float = 0.0
    branch_created: float = 0.0
    automatic: bool = False

    @property
    def is_base(self) -> bool:
        """Whether this is no state of a session, but the files below sessions (capture/bases.py)."""
        return self.setting.base == NO_BASE

    @property
    def tree(self) -> str:
        """The sealed upper tree in the pool with the capture's files."""
        return str(self.layers["files"]["tree"])

    def layer(self, kind: type[L]) -> L | None:
        """The record of the capture's layer; None if the capture lacks the layer."""
        found = self.layers.get(kind.KIND)
        return None if found is None else msgspec.convert(found, kind)


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a restore of a capture's processes that was made only to compare them with the capture.

    `at`: seconds since the epoch. `ms`: how long it took. `code`: "" if everything was as captured, `differs` if not,
    or the code of the error that prevented the restore; `said`: the error's words. `differences`: as (pid, descriptor
    or -1, captured, restored), at most MOST_DIFFERENCES.
    """

    at: float
    ms: float
    code: str = ""
    said: str = ""
    differences: tuple[tuple[int, int, str, str], ...] = ()


MOST_DIFFERENCES = 50


class ChangeCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many files a capture has changed since its parent (without one: of the machine), and how many lines."""

    files: int
    insertions: int
    deletions: int


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a capture that change after its record was written; the record itself never changes.

    `image`: its id in the store; None until it is there. `durable`: whether it survives a power loss; an image that is
    not durable was found to be damaged. `removed`: whether its content was removed; the record stays as long as a kept
    capture descends from it. `proof`: the latest. `changes`: None until they are counted.
    """

    image: str | None = None
    durable: bool = False
    removed: bool = False
    proof: Proof | None = None
    changes: ChangeCount | None = None


class StoreIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a names.db. `id`: random, made with the database. `opened`: how many daemons have opened it. If
    an old copy of names.db was put back, its `opened` is lower than the one noted in the home's folders.
    """

    id: str
    opened: int


class LiveRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session that has started and not ended. After a crash of the host, the next daemon makes a capture of `tree`.

    `session`: its id. `tree`: the name of its upper tree. `started`: seconds since the epoch. `leaves_to`: the capture
    that keeps the session, which was replaced and stays frozen until CRIU has dumped it; None: it was not replaced.
    `stands_for`: the capture of which it is a frozen copy that nobody has taken yet (session/birth/standby.py).
    """

    branch: LiveName
    session: Id
    tree: Id
    started: float
    setting: Setting
    leaves_to: Id | None = None
    stands_for: Id | None = None


RefKind = Literal["branch", "checkpoint"]


class Ref(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a name. `capture`: the branch's tip (None before its first capture), or the checkpoint's capture.
    `origin`: the tip with which the branch was made. `created`: seconds since the epoch.
    """

    kind: RefKind
    capture: Id | None
    origin: Id | None = None
    created: float = 0.0


class BaseRef(msgspec.Struct, frozen=True, kw_only=True):
    """The target of the name of a pinned base. `capture`: its files. `source`: from which it was made, in words.
    `created`: seconds since the epoch.
    """

    capture: Id
    source: str
    created: float


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one name by an operation: its ref `before` and `after`. None: the name did not exist."""

    before: Ref | None
    after: Ref | None


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """The capture of a live session that was replaced. `only`: the one aspect that was replaced while the session
    continued; None: the whole session was replaced.
    """

    capture: Id
    only: Aspect | None = None


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """A process session (setsid(2)), such as that of a terminal: the leader's pid and start time in clock ticks since
    boot.
    """

    pid: int
    start: int


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of an operation.

    `uid`: None for a process inside the session on `branch`. `login`: the caller's login session, None if unknown.
    `branch`: the branch that the caller works on ($WAYPOINT_BRANCH), if any.
    """

    uid: int | None = None
    login: Login | None = None
    branch: str | None = None


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The files of the machine that an operation has changed. `journal`: how to take that back
    (upper/apply_journal.py). `branch`: the branch of whose files they are. `count`: the number of changed files and
    folders.
    """

    journal: Id
    branch: str
    count: int


class Conversation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent's own file of its conversation, to which it only appends. `path`: absolute, in the session if `inside`,
    else on the machine. `size`: its bytes at that moment. `tail`: a digest of the last of them (client/rewinding.py).
    """

    path: str
    size: int
    tail: str
    inside: bool = False


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A moment to which `rewind` can return: before a prompt or a command. `capture`: has the state of this moment; of
    several points with the same one, nothing has changed in between. `branch_created`: as in Capture. `label`: the
    prompt or command. `commands`: those that were executed since the point before.
    """

    capture: Id = ""
    branch_created: float = 0.0
    label: str = ""
    commands: tuple[str, ...] = ()
    conversation: Conversation | None = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the operation log.

    `at`: seconds since the epoch. `moves`: by name. `sessions`: by branch, whether a session ran before and after.
    `aside`: by branch, the capture of a replaced live session. `by`: None if there was no caller (a shell that ended).
    `undoes`: the operation that this one has undone. `undone`: whether this one is undone now. `note`: other effects.
    `expired`: gc may have removed captures that its undo needs. `degraded`: why an undo is incomplete.
    `applied`: the changed files of the machine, if there are any. `point`: the point that it has made, if it has.
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
    degraded: list[Degradation] = []
    applied: Applied | None = None
    point: Point | None = None


class Deed(NamedTuple):
    """A step of an undo that ends, starts or restores a branch's session. For `start` and `restore`: the id of the
    capture to restore (None: the branch's tip), and the aspect to restore (None: the whole session).
    """

    act: Literal["end", "start", "restore"]
    branch: str
    capture: Id | None = None
    only: Aspect | None = None


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """An undo that has begun and is not in the operation log yet.

    `number`: of its row; 0 before it has one. `undoes`: the operation to undo. `deeds`, `names`, `seen`: as in
    branch/undo.py `Plan`. `moves`, `sessions`, `aside`: the changes of the deeds that are done, as in Operation.
    """

    number: int = 0
    undoes: int
    by: Caller | None
    lose_processes: bool
    deeds: list[Deed]
    names: dict[str, Ref | None]
    seen: dict[str, Ref | None]
    moves: dict[str, Move] = {}
    sessions: dict[str, tuple[bool, bool]] = {}
    aside: dict[str, Aside] = {}
