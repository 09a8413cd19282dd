"""Which of the many moments and places for a fault a run of the tests takes.

WAYPOINT_TEST_FAULTS=each takes all of them.
"""

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

Case = TypeVar("Case")

EACH = os.environ.get("WAYPOINT_TEST_FAULTS") == "each"


def some(cases: Sequence[Case], aspects: Callable[[Case], Iterable[Hashable]]) -> list[Case]:
    """The cases that a run takes, in their order: so many, always the same, that each aspect which any case has is met
    by one of them. `aspects`: what a case is made of, such as the pair of what is killed and when.
    """
    if EACH:
        return list(cases)
    wanted = {aspect for case in cases for aspect in aspects(case)}
    taken: set[int] = set()
    while wanted:
        best = max(range(len(cases)), key=lambda one: len(wanted.intersection(aspects(cases[one]))))
        taken.add(best)
        wanted.difference_update(aspects(cases[best]))
    return [cases[one] for one in sorted(taken)]
