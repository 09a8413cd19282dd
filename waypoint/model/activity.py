"""What goes on in a daemon, as typed records: jobs, and the events that tell what happened."""

from typing import Annotated, Any, Literal

import msgspec

from waypoint.model.requests import Request

Number = Annotated[int, msgspec.Meta(ge=0)]


class JobRequest(Request, frozen=True):
    """`doctor`: try every capability of the machine, as `POST /v1/doctor`. `gc`: remove what nothing keeps, as `POST
    /v1/gc` with an empty body.
    """

    kind: Literal["doctor", "gc"]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is. Null: not known."""

    bytes: int = 0
    bytes_total: int | None = None
    items: int = 0
    items_total: int | None = None


JobState = Literal["running", "done", "failed", "cancelled"]


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Work that a daemon does without a client that waits for it.

    `result`: of a job that is done, where one job is asked for; lists and events have null. `error`: of one that
    failed, the parts that an error answer has.
    """

    id: str
    kind: str
    state: JobState
    started: str
    ended: str | None = None
    progress: Progress = Progress()
    result: Any = None
    error: dict[str, str | int] | None = None


class EventsQuery(Request, frozen=True):
    """`after`: the `seq` of the last event that is known. `instance`: that of the daemon which told it, if known.

    `follow`: go on with what happens from now on.
    """

    after: Number = 0
    instance: str | None = None
    follow: bool = False


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """`seq`: counts up by one from event to event of one daemon. `instance`: which daemon, by a random id."""

    seq: int
    instance: str
    at: str


class BeginEvent(Event, frozen=True, tag="begin"):
    """First of every answer; `seq` is that of the newest event there is. Not an event of its own."""


class RestartedEvent(Event, frozen=True, tag="restarted"):
    """In place of `begin`: the events that the reader knows are another daemon's, all that follow are new."""


class LostEvent(Event, frozen=True, tag="lost"):
    """`count` events were dropped before this reader took them; `seq` is that of the last of them."""

    count: int


class OperationEvent(Event, frozen=True, tag="operation"):
    """An entry was added to the operation log. `names`: the names and branches that it is about."""

    number: int
    verb: str
    names: list[str]


class SessionEvent(Event, frozen=True, tag="session"):
    """`replaced`: by the session of this id and pid, in place; the old one tells no end of its own."""

    change: Literal["started", "ended", "replaced"]
    branch: str
    session: str
    pid: int


class JobEvent(Event, frozen=True, tag="job"):
    """`progress` comes at most ten times a second per job."""

    change: Literal["started", "progress", "ended"]
    job: JobFacts


AnyEvent = BeginEvent | RestartedEvent | LostEvent | OperationEvent | SessionEvent | JobEvent
