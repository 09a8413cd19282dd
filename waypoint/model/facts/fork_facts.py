"""Answers to a fork, as records (model/facts). Standard library only."""

from dataclasses import dataclass

from waypoint.model.facts.live_facts import SessionFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkFacts:
    """One session that a fork made. `ms`: milliseconds from the request until the session ran. `session`: as in the
    answer to a start.
    """

    branch: str
    pid: int
    ms: float
    session: SessionFacts
