"""Typed records about the work of a daemon: jobs, and events."""

from typing import Any, Literal

import msgspec

from waypoint.model.requests import Number, Request


class JobRequest(Request, frozen=True):
    """`kind`: `doctor` does the same as `POST /v1/doctor`; `gc` the same as `POST /v1/gc` with an empty body."""

    kind: Literal["doctor", "gc"]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a job. An unknown total is null."""

    bytes: int = 0
    bytes_total: int | None = None
    items: int = 0
    items_total: int | None = None


JobState = Literal["running", "done", "failed", "cancelled"]


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A job: work that the daemon continues when its client has gone.

    `result`: null until the job is done, and always in lists and events. `error`: the parts of the error if the job
    has failed.
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
    """`after`: the `seq` of the last event that the client has read. `instance`: the daemon that sent this event, if
    known. `follow`: continue with new events as they happen.
    """

    after: Number = 0
    instance: str | None = None
    follow: bool = False


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """`seq`: the number of the event, counted by the daemon. `instance`: the random id of this daemon."""

    seq: int
    instance: str
    at: str


class BeginEvent(Event, frozen=True, tag="begin"):
    """The first line of every answer, which is not an event. `seq`: that of the newest event."""


class RestartedEvent(Event, frozen=True, tag="restarted"):
    """The first line, in place of `begin`, if another daemon sent the events that the client has read: all events that
    follow are new.
    """


class LostEvent(Event, frozen=True, tag="lost"):
    """`count` events were dropped because this client read too slowly. `seq`: that of the last dropped event."""

    count: int


class OperationEvent(Event, frozen=True, tag="operation"):
    """An entry was added to the operation log. `names`: the names and branches that the operation changed."""

    number: int
    verb: str
    names: list[str]


class SessionEvent(Event, frozen=True, tag="session"):
    """A session has started or ended. `replaced`: the session with this id and pid has replaced the former one on the
    branch; there is no event for the end of the former one.
    """

    change: Literal["started", "ended", "replaced"]
    branch: str
    session: str
    pid: int


class ParkEvent(Event, frozen=True, tag="park"):
    """A session was parked by itself, was brought back, or could not be parked and continues (`failed`, with the reason
    `said`). `why`: `idle` (nobody has used it) or `ttl`. `tier`: of the capture, or at which it was brought back.
    """

    change: Literal["parked", "returned", "failed"]
    branch: str
    why: Literal["idle", "ttl"]
    capture: str = ""
    tier: Literal["live", "respawn", "files", ""] = ""
    said: str = ""


class JobEvent(Event, frozen=True, tag="job"):
    """A job has started, progressed or ended. There are at most ten `progress` events a second for each job."""

    change: Literal["started", "progress", "ended"]
    job: JobFacts


AnyEvent = BeginEvent | RestartedEvent | LostEvent | OperationEvent | SessionEvent | ParkEvent | JobEvent
