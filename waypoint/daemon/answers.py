"""Answers of the control interface that wrap the facts of `waypoint.model.requests`, and the shape of an error."""

from typing import Annotated

import msgspec

from waypoint.model.requests import (
    BranchFacts,
    Capability,
    CaptureFacts,
    ForkFacts,
    OperationFacts,
    Request,
    SessionFacts,
)


class Nothing(Request, frozen=True):
    """The body of a request that has no fields; it may also be left out."""


class SessionsQuery(Request, frozen=True):
    """The query of `GET /v1/sessions`."""

    all: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all bodies of 2xx answers."""


class Done(Answer, frozen=True):
    """An answer without facts: `{}`."""


class SessionAnswer(Answer, frozen=True):
    session: SessionFacts


class SessionsAnswer(Answer, frozen=True):
    sessions: list[SessionFacts]


class StopAnswer(Answer, frozen=True):
    """`capture`: where the files were kept, null if discarded. `exit`: the shell's, null if it was killed."""

    branch: str
    capture: str | None = None
    exit: int | None = None


class LogQuery(Request, frozen=True):
    """The query of `GET /v1/captures`. `name`: default `main`."""

    name: str | None = None
    all: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None


class OperationsQuery(Request, frozen=True):
    """The query of `GET /v1/operations`."""

    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ForksAnswer(Answer, frozen=True):
    forks: list[ForkFacts]


class CapturesAnswer(Answer, frozen=True):
    captures: list[CaptureFacts]


class CaptureAnswer(Answer, frozen=True):
    capture: CaptureFacts


class BranchesAnswer(Answer, frozen=True):
    branches: list[BranchFacts]


class OperationAnswer(Answer, frozen=True):
    operation: OperationFacts


class OperationsAnswer(Answer, frozen=True):
    operations: list[OperationFacts]


class DoctorAnswer(Answer, frozen=True):
    capabilities: list[Capability]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The four parts of a message, the class of the error and the exit code that the command line gives for it."""

    code: str
    exit: int
    tried: str
    on: str
    said: str
    next: str


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer outside 2xx, and of an `x` frame that ends a stream with an error."""

    error: Problem
