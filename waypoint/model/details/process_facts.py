"""Answers of the control interface about processes, as records (model/facts). Standard library
only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ENDED_IN_COPIES = "it is ended in copies"
"""How `Capture.degraded` says of a program that a live capture has not kept alive what becomes of it."""
MOST_SHOWN = 3
"""Programs that a line names; of more it says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedProcess:
    """A process of a session, and the tier that a capture would reach if there were only this one; of a capture, that
    which it has reached: `files` for what is not started again. `pid`: as the session sees it. `command`: without
    secrets. `why`: in words, why not `live`, or what a copy of a live one lacks; `remedy`: what to do then; else "".
    `profile`: the name of its workload profile, "" if it has none.
    """

    pid: int
    command: str
    tier: Literal["live", "respawn", "files"]
    why: str
    remedy: str
    profile: str = ""


def first_few(shown: Sequence[str]) -> str:
    """The first of the programs in words, and how many more there are; "" if there are none."""
    more = len(shown) - MOST_SHOWN
    return "; ".join(shown[:MOST_SHOWN]) + (f"; and {more} more" if more > 0 else "")
