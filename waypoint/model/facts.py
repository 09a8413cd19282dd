"""The answers of the API as records: the daemon builds them, the SDK parses them. Standard library only.

Every answer has all fields without a default. Times are text: UTC, ISO 8601, to the millisecond.
"""

from dataclasses import dataclass, field
from typing import Literal, NotRequired, TypedDict

from waypoint.model.session_facts import (
    BelowFacts,
    ChangeCountFacts,
    ConditionFacts,
    LimitFacts,
    SessionFacts,
    StrangerFacts,
)


class LayerFacts(TypedDict):
    """One layer of a capture. `files` also has `tree` (its folder in the pool), `processes` also `count` to `criu`,
    `terminal` also `rows` and `cols`, `shell` also `moment`, attached layers `attached` to `files` (model/records.py).

    `digest`: None until the layer is in the store. `frozen_ms`: how long CRIU froze the processes. `ids`, `seccomp`: as
    in SessionFacts; restored processes keep theirs.
    """

    size_bytes: int | None
    digest: str | None
    tree: NotRequired[str]
    count: NotRequired[int]
    programs: NotRequired[list[str]]
    lost: NotRequired[list[ConditionFacts]]
    frozen_ms: NotRequired[float]
    criu: NotRequired[str]
    ids: NotRequired[Literal["shifted", "host"]]
    seccomp: NotRequired[Literal["default", "userns", "none"]]
    moment: NotRequired[Literal["now", "prompt"]]
    attached: NotRequired[bool]
    type: NotRequired[Literal["file", "directory"]]
    source: NotRequired[str]
    files: NotRequired[int]
    rows: NotRequired[int]
    cols: NotRequired[int]


class DifferenceFacts(TypedDict):
    """A fact about a restored process that is not as captured. `pid`: inside the session. `fd`: the descriptor
    concerned; null: the process itself. `captured`, `restored`: the fact in words.
    """

    pid: int
    fd: int | None
    captured: str
    restored: str


class ProofFacts(TypedDict):
    """The result of restoring the processes of a capture without running them, at the time `at`; it took `ms`.

    `proved`: processes and descriptors were as captured. Otherwise `code`: `differs` (see `differences`), or the code
    of the error that prevented the restore; `said`: its words.
    """

    proved: bool
    at: str
    ms: float
    code: str
    said: str
    differences: list[DifferenceFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedFacts:
    """The answer about one capture to a request to prove captures. `name`: as in the request."""

    name: str
    capture: str
    proof: ProofFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFacts:
    """A capture.

    `image`: None until the capture is in the store. `names`: checkpoints of it, and branches whose tip it is. `limits`:
    the requested limits; null: the defaults of the host that restores it. `layers`: by kind (files, processes,
    programs, shell, terminal); None: not captured. `removed`: `waypoint gc` has removed its content; only these facts
    are left. `proof`: the latest; None if the capture was never proved. `changes`: since the parent, or of the machine
    if there is no parent; None while they are not counted.
    """

    capture: str
    image: str | None
    names: list[str]
    branch: str
    parents: list[str]
    tier: Literal["live", "respawn", "files"]
    reason: str
    message: str
    created: str
    durable: bool
    base: BelowFacts
    user: str
    cwd: str
    exit: int | None
    paused_ms: float | None
    degraded: list[ConditionFacts]
    environment: list[str]
    machine: dict[str, str]
    layers: dict[str, LayerFacts | None]
    removed: bool = False
    limits: LimitFacts | None = None
    proof: ProofFacts | None = None
    changes: ChangeCountFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """The answer to a checkpoint. `image`: None until the capture is in the store. `degraded`: what was kept less
    faithfully than requested. `proof`: None if none was requested. `reused`: nothing was captured, because the
    session's last capture has it as it is; then `paused_ms` is 0.
    """

    name: str
    capture: str
    image: str | None
    tier: Literal["live", "respawn", "files"]
    paused_ms: float
    total_ms: float
    durable: bool
    degraded: list[ConditionFacts]
    proof: ProofFacts | None = None
    reused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PointMadeFacts:
    """The answer to a request for a point of `branch`. `reused`: as in CheckpointFacts."""

    branch: str
    capture: str
    tier: Literal["live", "respawn", "files"]
    paused_ms: float
    total_ms: float
    reused: bool
    degraded: list[ConditionFacts]


class ConversationFacts(TypedDict):
    """An agent's file of its conversation at a point. `path`: in the session if `inside`, else on the machine. `size`:
    its bytes at the point. `tail`: a digest of the last of them.
    """

    path: str
    size: int
    tail: str
    inside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFacts:
    """A moment to which a branch can go back. `number`: how many points back, from 1. `label`: the prompt or command
    that came then; `name`: of the checkpoint, if it is one. `commands`, `changes`: those from there to the next point.
    `processes`: how many ran then; None if they are not kept.
    """

    number: int
    capture: str
    at: str
    label: str
    name: str
    tier: Literal["live", "respawn", "files"]
    commands: list[str]
    changes: ChangeCountFacts | None
    processes: int | None
    conversation: ConversationFacts | None


class MatchFacts(TypedDict):
    """A text that matches, without secrets. `where`: the name of a branch or checkpoint, the message of a capture, the
    label or a command of a point, or the path of a changed file.
    """

    where: Literal["name", "message", "label", "command", "file"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFacts:
    """A capture that matches; with `capture` None the running session on `branch`, started `at`. `more`: the number of
    further matches.
    """

    capture: str | None
    at: str
    branch: str
    names: list[str]
    matches: list[MatchFacts]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFacts:
    """The answer to a search. `is_limited`: more captures match. `unsearched`: names of captures and sessions whose
    changed files were not all searched: they are in the store only, or too many.
    """

    found: list[FoundFacts]
    is_limited: bool
    unsearched: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GotLayerFacts:
    """An attached layer that was copied to `path` on the host."""

    capture: str
    kind: str
    type: Literal["file", "directory"]
    size_bytes: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFacts:
    """A difference between two states.

    `kind`, `name`: a `file` by its path in the session (bytes that are not UTF-8 are `\\xNN`), a `process` by its
    command line without secrets, an exported `variable` of the shell by its name. `change`: `type`: the file became
    one of another type; `attributes`: only owner, mode or extended attributes differ, as in `detail`. `type`: of the
    file; if it was removed, the former type. `old_size`, `new_size`: bytes. `insertions`, `deletions`: lines; null for
    files that are no text or too large. `source`: the path from which a folder of the machine was moved. `patch`: in
    git's format.
    """

    kind: Literal["file", "process", "variable"]
    change: Literal["added", "removed", "changed", "type", "attributes"]
    name: str
    type: str = ""
    old_size: int | None = None
    new_size: int | None = None
    insertions: int | None = None
    deletions: int | None = None
    source: str | None = None
    detail: str = ""
    patch: str | None = None


class StepFacts(TypedDict):
    """What led to a capture. `message`: of the capture. `labels`, `commands`: of the points that it was taken for."""

    capture: str
    at: str
    names: list[str]
    message: str
    labels: list[str]
    commands: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffFacts:
    """What somebody needs who goes on with a capture, without secrets. `live`: whether a session runs on the branch
    `name`. `output`: the last lines of the terminal. `files`: those that it has changed of the machine: the first of
    `file_count`, if they are many without ignored ones (DiffRequest); `files_said`: why they are not known. `steps`:
    what led to it, the newest first.
    """

    name: str
    capture: CaptureFacts
    live: bool
    output: list[str]
    files: list[ChangeFacts]
    file_count: int
    files_said: str
    steps: list[StepFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """A commit of a session's changes. `files`: their number; with 0 no branch was made."""

    repository: str
    branch: str
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A file of a capture. `name`: bytes that are not UTF-8 are `\\xNN`. `mode`: octal. `target`: of a link."""

    name: str
    type: str
    mode: str
    uid: int
    gid: int
    size_bytes: int
    changed: str
    target: str | None = None


class ConflictFacts(TypedDict):
    """`path`: in the session. `said`: what forbids to apply it. `can_choose`: whether `ours` or `theirs` decides."""

    path: str
    said: str
    can_choose: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyFacts:
    """What an apply has changed on the machine, or would change.

    `applied`: whether it is done. `count`: the number of changed files and folders; `changes`: the first thousand of
    them. `conflicts`: the first thousand of `conflict_count`; if there are any, nothing was changed. `replaced`: paths
    of files that were replaced although the machine had changed them. `base`: the folder of the machine that is the
    session's root. `operation`: the number in the operation log, for `waypoint undo`. `capture`: whose files these
    are; None for a dry run of a live session.
    """

    applied: bool
    count: int
    changes: list[ChangeFacts]
    conflicts: list[ConflictFacts]
    conflict_count: int
    replaced: list[str]
    base: str
    operation: int | None
    capture: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedFacts:
    """A layer that was attached to what `name` stands for. `capture`: the new capture, for which `name` stands now.
    `parent`: the one before. `files`: how many the layer has. `image`, `durable`: as in CheckpointFacts.
    """

    name: str
    capture: str
    parent: str
    kind: str
    type: Literal["file", "directory"]
    size_bytes: int
    files: int
    image: str | None
    durable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkFacts:
    """One session that a fork made. `ms`: from the request until the session ran. `session`: as after a start."""

    branch: str
    pid: int
    ms: float
    session: SessionFacts


class NotForkedFacts(TypedDict):
    """A session that could not start. `number`: its place in the request, from 1. `error`: why, as in section 1 of
    docs/protocol.md.
    """

    number: int
    branch: str
    error: dict[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForksFacts:
    """The answer to a `fork`. `failed`: sessions that could not start, only if the request is `partial`."""

    forks: list[ForkFacts]
    failed: list[NotForkedFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFacts:
    """`tip`: the latest capture of the branch, made at `captured`; None before the first capture."""

    name: str
    tip: str | None
    live: bool
    tier: Literal["live", "respawn", "files"] | None
    created: str
    captured: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFacts:
    """A branch or checkpoint. `live`: a branch with a running session."""

    name: str
    kind: Literal["branch", "checkpoint"]
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFacts:
    """One entry of the operation log.

    `moves`: names, with their captures before and after (None: no capture). `sessions`: branches, with whether a
    session ran before and after. `undoes`: the operation that this one has undone. `undo`: what undoing this operation
    would do; None if that is impossible, for the reason in `said`. `note`: other effects. `degraded`: why an undo is
    incomplete.
    """

    number: int
    at: str
    verb: str
    moves: dict[str, tuple[str | None, str | None]]
    sessions: dict[str, tuple[bool, bool]]
    undone: bool
    undoes: int | None
    undo: str | None
    said: str
    note: str = ""
    degraded: list[ConditionFacts] = field(default_factory=list)

    @property
    def ended(self) -> list[str]:
        """The branches whose sessions the operation ended."""
        return [branch for branch, (before, after) in self.sessions.items() if before and not after]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneFacts:
    """The operation that was undone. `at`, `by`: its time and its caller. `undo`: what the undo did. `lost`: processes
    that it could not restore. `degraded`: parts of the replaced or ended sessions that were not kept, and parts that
    were restored incompletely.
    """

    number: int
    verb: str
    undo: str
    lost: list[ConditionFacts]
    degraded: list[ConditionFacts]
    at: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoFacts:
    """The answer to an undo. `operation`: the log entry of the undo itself; None for a dry run."""

    operation: OperationFacts | None
    undone: UndoneFacts


class RemovedFacts(TypedDict):
    """A capture that was removed, or would be. `size_bytes`: of its process images; its files may share their blocks
    with other captures.
    """

    capture: str
    branch: str
    created: str
    tier: Literal["live", "respawn", "files"]
    size_bytes: int


class KeptFacts(TypedDict):
    """A capture that is kept. `why`: `name`: `names` stand for it; `undo`: the undo of a recent operation needs it;
    `last`, `daily`: the option `--keep-last` or `--keep-daily`, or this setting of the home.
    """

    capture: str
    branch: str
    created: str
    names: list[str]
    why: list[Literal["name", "undo", "last", "daily", "base"]]


HeldBy = Literal["names", "policy", "undo", "files"]


class HeldFacts(TypedDict):
    """What holds space of a home. `by`: captures with a name, captures that only the policy keeps (--keep-last,
    --keep-daily), captures that only undo needs; the files of all captures and sessions.

    `captures`: how many. `copies_bytes`: outside of the store; of captures, without files. `stored_bytes`: in the
    store; what several captures share counts for the first of these reasons; null if the store cannot be read now.
    """

    by: HeldBy
    captures: int
    copies_bytes: int
    stored_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GcFacts:
    """The answer to a `gc`. With `dry_run` the lists name what would be removed.

    `removed`, `kept`: captures, oldest first. `strangers`: things that names.db did not list. `kept_operations_s`:
    operations of this many last seconds can still be undone. `freed_bytes`: space returned to the disk. `home_bytes`:
    space that the home takes now. `failed`: messages about what could not be removed; the next daemon tries again.
    `stays`: messages about free space that was not returned. `evicted`: the ids of captures
    whose copies outside of the store were removed. `held`: what holds the space that is left, before a dry run.
    """

    dry_run: bool
    removed: list[RemovedFacts]
    strangers: list[StrangerFacts]
    kept_operations_s: float
    freed_bytes: int
    home_bytes: int
    failed: list[str]
    stays: list[str] = field(default_factory=list)
    kept: list[KeptFacts] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    held: list[HeldFacts] = field(default_factory=list)


class DamageFacts(TypedDict):
    """Damage in the store. `said`: what is wrong. `names`: of the captures that cannot be restored completely, or their
    ids if they have no name.
    """

    said: str
    names: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFacts:
    """The answer to a `verify`. `images`: the number of images of captures. `damage`: empty if all is well.
    `stored_again`: names of captures with a damaged image that are stored again now, since they are also on disk
    outside of the store.
    """

    read_data: bool
    images: int
    damage: list[DamageFacts]
    stored_again: list[str] = field(default_factory=list)


class EvictedFacts(TypedDict):
    """A capture whose copy outside of the store was removed. `name`: as requested, or one of its names."""

    name: str
    capture: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictFacts:
    """The answer to an `evict`. `kept`: messages about captures that were left as they are, because they are in use or
    cannot be stored. `freed_bytes`: space that was freed, as far as it is not shared.
    """

    evicted: list[EvictedFacts]
    kept: list[str]
    freed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """How a container image wants its programs to be started. `env`: NAME=VALUE each. `exposed_ports`: 80/tcp."""

    env: list[str]
    working_dir: str
    user: str
    entrypoint: list[str]
    cmd: list[str]
    exposed_ports: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFacts:
    """A pinned base. `id`: of its content, the beginning of `image`, which is its id in the store. `source`: from what
    it was made. `on_disk`: whether its files are also outside of the store. `sessions`: the branches of the live
    sessions on it. `config`: of the container image from which it was made.
    """

    name: str
    id: str
    image: str | None
    source: str
    created: str
    on_disk: bool
    sessions: list[str]
    config: ImageFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseMadeFacts:
    """A base that was made. `left_out`: what it lacks of its source. `new_bytes`: by how much the store has grown."""

    name: str
    id: str
    image: str
    left_out: list[ConditionFacts]
    new_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRemovedFacts:
    """The name of a base that was removed, and the base's id."""

    name: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFacts:
    """The answer to an `export`. `digest`: of the archive's OCI manifest. `captures`: the number of captures in the
    archive, with ancestors of which it has only the records. `exposes`: the home is encrypted, and the archive is not.
    """

    name: str
    capture: str
    image: str
    path: str
    digest: str
    size_bytes: int
    captures: int
    signed: bool
    exposes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFacts:
    """The answer to an `import`. `name`: of the exported capture; `names`: all new checkpoints. `asks_for`: what a
    session from this capture gets of the machine, in words. `signed`: whether a signature was required and found.
    `new_bytes`: by how much the store has grown.
    """

    name: str
    names: list[str]
    capture: str
    image: str
    tier: Literal["live", "respawn", "files"]
    captures: int
    new_bytes: int
    digest: str
    signed: bool
    asks_for: list[str]


class HolderFacts(TypedDict):
    """The disk usage of a capture, a live session or a stranger.

    `kind`: `capture`, `session`, or `unknown ` and the kind of the stranger. `names`: of the capture; the session's
    branch. `own_files_bytes`: the part of `files_bytes` that nothing else shares, which removal frees.
    `processes_bytes`: the process images and the terminal, never shared. The sizes are null if they could not be
    measured; `degraded` then has the reason.
    """

    kind: str
    id: str
    names: list[str]
    files_bytes: int | None
    own_files_bytes: int | None
    processes_bytes: int | None
    degraded: list[ConditionFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class DuFacts:
    """The disk usage of a home.

    `holders`: captures (newest first), sessions, and content that names.db does not know. `logical_bytes`: the sum over
    the holders as if nothing were shared. `unique_bytes`: this sum with each shared block counted once; if the request
    names holders: the sum of their `own_files_bytes` and `processes_bytes`. `stored_bytes`: durable data in the store.
    `hot_bytes`: the hot area (all parts of captures except their files). `pool_bytes`: the pool's size on disk.
    `overhead_bytes`: the part of the pool that belongs to no tree: free space and btrfs's own tables. `rings_bytes`:
    terminals of live sessions, in memory. `home_bytes`: the whole home on disk. `free_bytes`: free space of that disk.
    `copies_bytes`: of all captures outside of the store, without what only live sessions have. `hot_budget_bytes`: if
    they take more, captures that are in the store are evicted. `undo_budget_bytes`: if what only undo needs takes more,
    the oldest operations can no longer be undone. `memory_bytes`: the part of `hot_bytes` that is in memory, and not
    yet on the disk; `hot_memory_bytes`: its limit, 0 if captures are not written to memory. `storing`: the progress of
    the job that stores captures, if it runs (`bytes`, `bytes_total`: of the present capture; `items`: captures).
    `held`: what holds the space; empty if the request names holders.
    """

    holders: list[HolderFacts]
    logical_bytes: int
    unique_bytes: int
    stored_bytes: int
    hot_bytes: int
    pool_bytes: int
    overhead_bytes: int
    names_bytes: int
    logs_bytes: int
    rings_bytes: int
    home_bytes: int
    free_bytes: int
    copies_bytes: int = 0
    hot_budget_bytes: int = 0
    undo_budget_bytes: int = 0
    memory_bytes: int = 0
    hot_memory_bytes: int = 0
    held: list[HeldFacts] = field(default_factory=list)
    storing: dict[str, int | None] | None = None
