"""The answers of the control interface, as records: the daemon makes them, the SDK parses them. Standard library only.

A field without a default is in every answer. A time is a text: UTC, ISO 8601, to the millisecond.
"""

from dataclasses import dataclass, field
from typing import Literal, NotRequired, TypedDict


class ReplacedFacts(TypedDict):
    """The capture that keeps what a restore has replaced."""

    capture: str
    tier: Literal["live", "respawn", "files"]


class ExchangedFacts(TypedDict):
    """What a restore of files has done to a live session: `changed` entries, `written_bytes` of content in them, while
    the session stood still for `paused_ms`.
    """

    changed: int
    written_bytes: int
    paused_ms: float


class LimitFacts(TypedDict):
    """How much of the machine a session may use; null: as much as there is. `cpus`: in processors. `pids`: processes
    and threads.
    """

    memory_bytes: int | None
    cpus: float | None
    pids: int | None
    disk_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """A session. With `state` `ended` or `lost`: a branch that can be started again, with only a few of the fields.
    With `unreachable`: it runs, and the daemon cannot reach it, for the reason in `said`; it can be stopped.

    `left_out`: the mounts of the machine that the session does not have. `shared`: the folders and files that are the
    machine's own (binds): what is done there is not kept and not undone. `shell`: the path of its shell, None if a
    command runs in its place. `hooks`: whether this shell has Waypoint's hooks, without which there is no exec.
    `capture`: the id of the capture with the files of an ended session. `degraded`: in words, which hard limits its
    processes have lost since they were captured; in the answer to a restore, also the parts of the capture that could
    not be brought back, and what was not kept of a session that was replaced; in the answers to a start and a fork,
    also what the capture keeps less faithfully than asked. `replaced`: in the answer to a restore, what keeps what was
    on the branch before; None if nothing was; `exchanged`: in that to one of files alone. `respawned`, `offered`,
    `lost`: the command lines, without secrets, of what a capture of the tier `respawn` had: started again, put on the
    shell's line for Enter to run, and not started again, with why.

    `allow_net`: the names and networks that it may reach, and no others; None: all that is public. `no_way_out`: in
    words, why a session on a private network reaches nothing.

    `ids`: `shifted`, if the ids of its users are none that a user of the machine has, so that its root is nobody
    outside; `host`, if they are the machine's own. `why_host_ids`: then, in words, why, unless config.json wants that.

    `seccomp`: the filter of system calls around its processes: `default`, `userns` (it may make namespaces and mounts
    of its own) or `none`. `why_no_seccomp`: then, in words, why, unless config.json wants that.

    `limits`: how much of the machine it may use. `unlimited`: in words, which of these limits this machine does not
    hold, or only in part; each begins with the limit's name.
    """

    branch: str
    state: Literal["live", "unreachable", "parked", "ended", "lost"]
    created: str
    id: str | None = None
    pid: int | None = None
    uptime_s: float | None = None
    user: str | None = None
    base: str | None = None
    net: str | None = None
    allow_net: list[str] | None = None
    no_way_out: str | None = None
    cwd: str | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    upper_bytes: int | None = None
    attached: int | None = None
    left_out: list[str] | None = None
    shared: list[str] | None = None
    ids: Literal["shifted", "host"] | None = None
    why_host_ids: str | None = None
    seccomp: Literal["default", "userns", "none"] | None = None
    why_no_seccomp: str | None = None
    limits: LimitFacts | None = None
    unlimited: list[str] | None = None
    shell: str | None = None
    hooks: bool | None = None
    capture: str | None = None
    degraded: list[str] | None = None
    respawned: list[str] | None = None
    offered: list[str] | None = None
    lost: list[str] | None = None
    replaced: ReplacedFacts | None = None
    exchanged: ExchangedFacts | None = None
    said: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFacts:
    """The answer to a request to stop a session.

    `capture`: the id of the capture that keeps the session, None if it was discarded; `tier`: that of this capture;
    `degraded`: in words, what it keeps less faithfully than asked. `exit`: the shell's exit status, None if the shell
    was killed.
    """

    branch: str
    capture: str | None = None
    exit: int | None = None
    tier: Literal["live", "respawn", "files"] | None = None
    degraded: list[str] | None = None


class LayerFacts(TypedDict):
    """One layer of a capture. `files` also has `tree` (the name of its folder in the pool), `processes` also `count`
    to `criu`, `terminal` also `rows` and `cols`, `shell` also `moment` (model/records.py).

    `digest` is None until the layer is in the store. `frozen_ms`: how long CRIU held the processes, in milliseconds.
    `ids`, `seccomp`: as in SessionFacts; processes come back with what they had.
    """

    size_bytes: int | None
    digest: str | None
    tree: NotRequired[str]
    count: NotRequired[int]
    programs: NotRequired[list[str]]
    lost: NotRequired[list[str]]
    frozen_ms: NotRequired[float]
    criu: NotRequired[str]
    ids: NotRequired[Literal["shifted", "host"]]
    seccomp: NotRequired[Literal["default", "userns", "none"]]
    moment: NotRequired[Literal["now", "prompt"]]
    rows: NotRequired[int]
    cols: NotRequired[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFacts:
    """One moment of a session.

    `image`: None until the capture is in the store. `names`: checkpoints, and branches whose tip the capture is.
    `limits`: how much of the machine its session was asked to use at most; null: what is usual where it goes on.
    `layers`: the layers by kind (files, processes, programs, shell, terminal); None for a layer that the capture does
    not have. `removed`: whether `waypoint gc` has removed all that it kept, so that only these facts are left.
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
    base: str
    user: str
    cwd: str
    exit: int | None
    paused_ms: float | None
    degraded: list[str]
    environment: list[str]
    machine: dict[str, str]
    layers: dict[str, LayerFacts | None]
    removed: bool = False
    limits: LimitFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """The answer to a checkpoint.

    `image`: None until the capture is in the store. `degraded`: in words, what was kept less faithfully than asked.
    """

    name: str
    capture: str
    image: str | None
    tier: Literal["live", "respawn", "files"]
    paused_ms: float
    total_ms: float
    durable: bool
    degraded: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkFacts:
    """One session that a fork made. `ms`: milliseconds from the request until the session ran. `session`: as in the
    answer to a start.
    """

    branch: str
    pid: int
    ms: float
    session: SessionFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFacts:
    """`tip`: the capture that the branch goes on from, made at `captured`; None before the branch's first capture."""

    name: str
    tip: str | None
    live: bool
    tier: Literal["live", "respawn", "files"] | None
    created: str
    captured: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFacts:
    """A name and what it is; `live`: a branch whose session runs."""

    name: str
    kind: Literal["branch", "checkpoint"]
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFacts:
    """One entry of the operation log.

    `moves`: names with the captures that they stood for before and after (None: nothing). `sessions`: branches with
    whether they had a live session before and after. `undoes`: the number of the operation that this one took back.
    `undo`: what taking this one back would do; None if it cannot be taken back, for the reason in `said`. `note`: what
    it did besides moving names and sessions, in words.
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

    @property
    def ended(self) -> list[str]:
        """The branches whose sessions it has ended."""
        return [branch for branch, (before, after) in self.sessions.items() if before and not after]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneFacts:
    """The operation that an undo took back. `at`, `by`: when it was done, and by whom, in words. `undo`: what taking it
    back did, in words. `lost`: what it has not brought back, in words. `degraded`: in words, what was not kept
    of sessions that the undo replaced or ended, and what could not be brought back as it was.
    """

    number: int
    verb: str
    undo: str
    lost: list[str]
    degraded: list[str]
    at: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoFacts:
    """The answer to an undo. `operation`: the entry that the undo made in the operation log; None if it was only to be
    told what the undo would do.
    """

    operation: OperationFacts | None
    undone: UndoneFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFacts:
    """The daemon itself. `home`: the home's real path. `sessions`: the number of live sessions. `started`: when the
    daemon was started. `pool`: how the home keeps the files of sessions: `btrfs`, or `copy`, where each capture copies
    them. `problem`: the error that all get now who would write to the pool, as in an answer.
    """

    pid: int
    version: str
    home: str
    sessions: int
    started: str
    pool: str = ""
    problem: dict[str, str | int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerFacts:
    """A thing in the home that names.db does not know, and that is kept: another names.db may know it.

    `kind`: `processes` (`path` is their cgroup), `files` (an upper tree, which only the daemon sees if the pool is a
    file), `capture` (a folder with the processes and the terminal of a capture), `session` (a runtime folder). `id`:
    that of the capture or session.
    """

    kind: Literal["processes", "files", "capture", "session"]
    id: str
    path: str


class RemovedFacts(TypedDict):
    """A capture that was removed, or would be. `size_bytes`: of the images of its processes; its files may share what
    they have on disk with other captures.
    """

    capture: str
    branch: str
    created: str
    tier: Literal["live", "respawn", "files"]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GcFacts:
    """The answer to a `gc`.

    `removed`: the captures that were removed, the oldest first; with `dry_run`, those that would be. `strangers`: the
    same for what names.db did not know. `kept_operations_s`: so many last seconds' operations can still be taken back.
    `freed_bytes`: what the home has given back to the disk. `home_bytes`: what the home has there now. `failed`: in
    words, what could not be removed; the next daemon tries it again. `stays`: in words, the free space that was
    not given back.
    """

    dry_run: bool
    removed: list[RemovedFacts]
    strangers: list[StrangerFacts]
    kept_operations_s: float
    freed_bytes: int
    home_bytes: int
    failed: list[str]
    stays: list[str] = field(default_factory=list)


class HolderFacts(TypedDict):
    """What a capture, a live session or a stranger has on disk, in bytes.

    `kind`: `capture`, `session`, or that of a stranger with `unknown ` before it. `id`: of the capture or session.
    `names`: those that stand for the capture; the session's branch. `files_bytes`: of its files; `own_files_bytes`:
    those of them that nothing else has, which is what removing it gives back of them. `processes_bytes`: of the images
    of its processes and of its terminal, which nothing else has.
    """

    kind: str
    id: str
    names: list[str]
    files_bytes: int
    own_files_bytes: int
    processes_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DuFacts:
    """What a home has on disk, in bytes.

    `holders`: captures (the newest first), sessions, strangers. `logical_bytes`: the sum of all that these have, as if
    nothing were shared. `unique_bytes`: the sum of what the holders have, with each shared block counted once; if the
    request names holders: the sum of `own_files_bytes` and `processes_bytes` of these. `stored_bytes`: of what is
    durable in the store. `hot_bytes`: of the hot area, which has all but the files of captures. `pool_bytes`: what the
    pool of files takes of the disk. `overhead_bytes`: what of it no file has: room for writing, and what btrfs needs.
    `names_bytes`: of names.db. `logs_bytes`: of the logs. `rings_bytes`: of the terminals of live sessions, in memory.
    `home_bytes`: what the whole home takes of the disk, which has `free_bytes` left.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One row of `doctor`: a capability that was tried on this machine, whether it works, why not, what to do.

    `required_for`: who needs the capability: `session` every session, `live` captures with processes, `optional` none.
    """

    name: str
    state: Literal["ok", "missing", "degraded"]
    why: str = ""
    remedy: str = ""
    required_for: Literal["session", "live", "optional"] = "optional"
