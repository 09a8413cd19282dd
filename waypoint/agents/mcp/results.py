"""The results of the tools, as records. A field that has its default is left out of the answer."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from waypoint.model.facts import BranchFacts, CaptureFacts, ChangeFacts, OperationFacts, PointFacts, UndoneFacts
from waypoint.model.session_facts import ChangeCountFacts, ConditionFacts, ExchangedFacts, ReplacedFacts, SessionFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Output as text; bytes that are not UTF-8 are replaced. If it is longer than the bound, `text` is its beginning,
    `tail` its end, `omitted_bytes` are left out between them, and the tool `output` reads on from `cursor`.
    """

    text: str
    total_bytes: int
    omitted_bytes: int = 0
    tail: str | None = None
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of an output. `cursor`: of the next page; missing: this is the last. `lost_bytes`: the end of the output
    that was too long to be kept.
    """

    text: str
    left_bytes: int
    lost_bytes: int = 0
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """The part of SessionFacts (waypoint/model/session_facts.py) that an agent needs."""

    branch: str
    state: Literal["live", "unreachable", "parked", "ended", "lost"]
    created: str
    user: str | None = None
    cwd: str | None = None
    net: str | None = None
    shell: str | None = None
    processes: int | None = None
    memory_bytes: int | None = None
    shared: list[str] | None = None
    said: str | None = None
    degraded: list[ConditionFacts] | None = None
    respawned: list[str] | None = None
    offered: list[str] | None = None
    lost: list[ConditionFacts] | None = None
    replaced: ReplacedFacts | None = None
    exchanged: ExchangedFacts | None = None


def unusual(found: list[ConditionFacts]) -> list[ConditionFacts]:
    """Without the conditions that most sessions have, which commands do not print either."""
    return [one for one in found if not one.get("usual")]


def state_of(facts: SessionFacts) -> SessionState:
    """The state of a session. Empty lists are left out."""
    found: dict[str, Any] = {one.name: getattr(facts, one.name) for one in fields(SessionState)}
    found["degraded"] = unusual(facts.degraded or [])
    known: dict[str, Any] = {name: value for name, value in found.items() if value != []}
    return SessionState(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """`created`: false if the session was running already."""

    created: bool
    session: SessionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """`exit`: of the command, or of Waypoint if `by` is `waypoint` (124: timeout). `ended`: the session ended, too."""

    exit: int
    by: Literal["command", "waypoint"]
    output: Output
    duration_ms: float
    ended: bool = False
    said: str | None = None
    new_shell: bool = False
    state_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    exit: int
    by: Literal["command", "waypoint"]
    stdout: Output
    stderr: Output
    duration_ms: float
    said: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A part of a file. `next_offset`: where the next part begins; missing: this is the last."""

    path: str
    content: str
    encoding: Literal["utf-8", "base64"]
    offset: int
    next_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """`next_offset`: missing: there are no more."""

    sessions: list[SessionState]
    branches: list[BranchFacts]
    next_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A capture, without its layers. `names`: checkpoints of it, and branches whose latest capture it is."""

    capture: str
    names: list[str]
    branch: str
    tier: Literal["live", "respawn", "files"]
    reason: str
    message: str
    created: str
    parents: list[str]
    durable: bool
    removed: bool
    degraded: list[ConditionFacts]
    changes: ChangeCountFacts | None = None


def capture_of(facts: CaptureFacts) -> Capture:
    known: dict[str, Any] = {one.name: getattr(facts, one.name) for one in fields(Capture)}
    known["degraded"] = unusual(facts.degraded)
    return Capture(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    captures: list[Capture]
    next_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """`total`: of all changes. `patch`: of the listed changes, in git's format."""

    total: int
    changes: list[ChangeFacts]
    next_offset: int | None = None
    patch: Output | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    sessions: list[SessionState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One command of `try`, in its own session on `branch`. `said`: why the command or its score has failed, or why the
    session was not ended.
    """

    branch: str
    command: str
    exit: int
    by: Literal["command", "waypoint"]
    output: Output
    duration_ms: float
    score: float | None = None
    said: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    name: str
    branch: str
    capture: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """`kept`: the checkpoint of the best attempt. `running`: branches whose sessions run on."""

    attempts: list[Attempt]
    running: list[str]
    kept: Best | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """`session`: after a rewind to the only point of `points`; missing: they were listed."""

    points: list[PointFacts]
    session: SessionState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """`operation`: the log entry of the undo; missing after a dry run."""

    undone: UndoneFacts
    operation: OperationFacts | None = None
