"""Answers to requests to stop sessions, as records (model/facts). Standard library only."""

from dataclasses import dataclass
from typing import Literal


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


@dataclass(frozen=True, slots=True)
class StopsFacts:
    """The answer to a request to stop several sessions. `failed`: the errors of those that could not be stopped."""

    stopped: list[StopFacts]
    failed: list[dict[str, str | int]]
