"""The answers of the API about sessions and the home, as records; `facts` has those about captures and files.

They are apart because most commands need these alone, and Python takes 0.7 ms to make each record.
"""

from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict


class BelowFacts(TypedDict):
    """The files below a session. `kind`: `machine`: those of this machine, as they are now; `folder`: those of the
    folder `path` of this machine, as they are now; `pinned`: those of a pinned base, which never change: its `id`, and
    the `name` by which it was asked for.
    """

    kind: Literal["machine", "folder", "pinned"]
    path: NotRequired[str]
    name: NotRequired[str]
    id: NotRequired[str]


class ConditionFacts(TypedDict):
    """One thing that was not kept or restored completely (docs/conditions.md). `code`: stable, for programs. `subject`:
    the thing concerned. `detail`: the reason, or a number. `text`: the sentence for people. `about`: `replaced` or
    `ended` if it is about the state before. `branch`: present in answers about several branches. `usual`: present and
    true if it holds for most sessions, and few programs notice; commands do not print it.
    """

    code: str
    subject: str
    detail: str
    text: str
    about: NotRequired[str]
    branch: NotRequired[str]
    usual: NotRequired[bool]


class ReplacedFacts(TypedDict):
    """The capture that keeps the state before a restore."""

    capture: str
    tier: Literal["live", "respawn", "files"]


class ExchangedFacts(TypedDict):
    """The effect of a restore of files on a live session: `changed` entries, `written_bytes` of content; the session
    was paused for `paused_ms`.
    """

    changed: int
    written_bytes: int
    paused_ms: float


class LimitFacts(TypedDict):
    """The resource limits of a session; null: unlimited. `cpus`: processors. `pids`: processes and threads."""

    memory_bytes: int | None
    cpus: float | None
    pids: int | None
    disk_bytes: int | None


class PortFacts(TypedDict):
    """A TCP port on which a session listens, or that is published. `program`: the program that listens; "": none does,
    or it is not known. `host`, `host_port`: the address and the port of the machine from which connections are
    forwarded to it; null: the port is not published. `said`: why they are not forwarded.
    """

    port: int
    program: str
    host: str | None
    host_port: int | None
    said: NotRequired[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """A session. `state` `ended` or `lost`: a branch without a session, which can be started again; most fields are
    missing. `unreachable`: the session runs, but the daemon cannot reach it (reason: `said`); it can be stopped.

    `left_out`: mounts of the host that the session does not see. `shared`: bind mounts; changes there are neither
    captured nor undone. `shell`: the path of the shell; None if a command runs instead. `hooks`: whether the shell has
    Waypoint's hooks, which exec needs. `capture`: the capture with the files of an ended session. `degraded`: messages:
    hard limits that the processes lost since their capture; after a restore also the parts of the capture that did not
    come back and the parts of the replaced session that were not kept; after a start or fork also what the capture
    keeps less faithfully than requested. `replaced`: after a restore, the capture of the previous state; None if there
    was none. `exchanged`: set only after a restore of files alone. `respawned`, `offered`, `lost`: command lines,
    without secrets, if programs were to be started again: started; put on the shell's input line for the user to
    confirm; not started, with the reason.

    `allow_net`: the only names and networks that the session can reach; None: all public ones. `no_way_out`: why a
    session on a private network has no connection.

    `ids`: `shifted`: the session's user ids map to host ids that no host user has; `host`: they are the host's ids.
    `why_host_ids`: the reason for `host`, unless config.json requests it.

    `seccomp`: the system call filter: `default`, `userns` (namespaces and mounts are allowed) or `none`.
    `why_no_seccomp`: the reason for `none`, unless config.json requests it.

    `unlimited`: limits that this host does not enforce, or only in part; `subject`: the limit's name.

    `parks_in_s`: the seconds until the session is parked if nobody uses it; `ends_in_s`: until it is parked in any
    case, also of a parked session, which no command brings back after that. None: never. `parked_by`: why the session
    of a parked branch was parked, if no command asked for that: the next command that needs an `idle` one brings it
    back.

    `resident_bytes`: the memory that the processes have resident, each on its own; of it `own_bytes` is mapped by no
    other process, and `shared_bytes` also by others: of the session, its forks, or the machine.

    `captured`, `message`: of a branch without a session: when its last capture was taken, and the message of that.

    `ports`: the published ports; `host` is 127.0.0.1 if all loopback addresses of the machine forward to it.

    `changes`, in lists: of the branch's last capture, as in CaptureFacts; null while they are not counted.
    """

    branch: str
    state: Literal["live", "unreachable", "parked", "ended", "lost"]
    created: str
    id: str | None = None
    pid: int | None = None
    uptime_s: float | None = None
    user: str | None = None
    base: BelowFacts | None = None
    net: str | None = None
    allow_net: list[str] | None = None
    no_way_out: str | None = None
    cwd: str | None = None
    memory_bytes: int | None = None
    resident_bytes: int | None = None
    shared_bytes: int | None = None
    own_bytes: int | None = None
    processes: int | None = None
    upper_bytes: int | None = None
    attached: int | None = None
    left_out: list[ConditionFacts] | None = None
    shared: list[str] | None = None
    ids: Literal["shifted", "host"] | None = None
    why_host_ids: str | None = None
    seccomp: Literal["default", "userns", "none"] | None = None
    why_no_seccomp: str | None = None
    limits: LimitFacts | None = None
    unlimited: list[ConditionFacts] | None = None
    shell: str | None = None
    hooks: bool | None = None
    capture: str | None = None
    degraded: list[ConditionFacts] | None = None
    respawned: list[str] | None = None
    offered: list[str] | None = None
    lost: list[ConditionFacts] | None = None
    replaced: ReplacedFacts | None = None
    exchanged: ExchangedFacts | None = None
    said: str | None = None
    changes: "ChangeCountFacts | None" = None
    parks_in_s: float | None = None
    ends_in_s: float | None = None
    parked_by: Literal["idle", "ttl"] | None = None
    ports: list[PortFacts] | None = None
    captured: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFacts:
    """The answer to a stop. `capture`: the capture of the session, None if it was discarded; `tier`: its tier.
    `degraded`: what the capture keeps less faithfully than requested. `exit`: the shell's exit status, None if it was
    killed.
    """

    branch: str
    capture: str | None = None
    exit: int | None = None
    tier: Literal["live", "respawn", "files"] | None = None
    degraded: list[ConditionFacts] | None = None


class ChangeCountFacts(TypedDict):
    """How many files changed, and how many lines of them were inserted and deleted."""

    files: int
    insertions: int
    deletions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFacts:
    """The daemon. `home`: the real path. `sessions`: the number of live sessions. `pool`: how the home stores files:
    `btrfs`, or `copy` (each capture copies them). `problem`: the error that every write to the pool now gets.
    `disk_bytes`, `free_bytes`: what the home's disk has for users, and what of that is free. `standbys`,
    `standby_bytes`: how many frozen copies of checkpoints stand ready for forks, and how much memory they take at most.
    `share_bytes`: what each session could still write at most when little was left; None while there is enough.
    """

    pid: int
    version: str
    home: str
    sessions: int
    started: str
    pool: str = ""
    problem: dict[str, str | int] | None = None
    disk_bytes: int = 0
    free_bytes: int = 0
    standbys: int = 0
    standby_bytes: int = 0
    share_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerFacts:
    """A thing in the home that names.db does not list. It is kept, since another names.db may list it.

    `kind`: `processes` (`path`: their cgroup), `files` (an upper tree, which only the daemon sees if the pool is a
    file), `capture` (a folder with the processes and the terminal of a capture), `session` (a runtime folder). `id`: of
    the capture or session.
    """

    kind: Literal["processes", "files", "capture", "session"]
    id: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One row of `doctor`: a feature, whether it works here, why not, and the remedy.

    `required_for`: `session`: every session; `live`: captures with processes; `optional`: nothing. `code`: the
    condition's code (docs/conditions.md) if the row is about a patch that CRIU lacks, else "".
    """

    name: str
    state: Literal["ok", "missing", "degraded"]
    why: str = ""
    remedy: str = ""
    required_for: Literal["session", "live", "optional"] = "optional"
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriuLogFacts:
    """CRIU's log of a failed dump or restore: its end, at most 1 MiB."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedProcess:
    """A process of a live session, and the tier that a capture of this process alone would reach. `pid`: as seen in the
    session. `command`: without secrets. `code`, `why`, `remedy`: of the error of a capture with processes; "" if the
    tier is `live`.
    """

    pid: int
    command: str
    tier: Literal["live", "respawn", "files"]
    code: str = ""
    why: str = ""
    remedy: str = ""
