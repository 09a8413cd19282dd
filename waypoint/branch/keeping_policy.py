"""Which captures of a branch's history a policy keeps, beside those that names and operations keep: as restic's forget.

The last N; and of each of the last N hours, days, weeks and months in which there is one, the newest. Hours and days
are those of the machine's time zone, weeks those of ISO 8601.
"""

import datetime
import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple


class KeepPolicy(NamedTuple):
    """How many are kept of each kind."""

    last: int = 0
    hourly: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0


class Dated(NamedTuple):
    """A capture of the branch `branch`. `created`: in seconds since the epoch."""

    id: str
    branch: str
    created: float


_PERIODS: dict[str, Callable[[datetime.datetime], tuple[int, ...]]] = {
    "hourly": lambda at: (at.year, at.month, at.day, at.hour),
    "daily": lambda at: (at.year, at.month, at.day),
    "weekly": lambda at: tuple(at.isocalendar())[:2],
    "monthly": lambda at: (at.year, at.month),
}


def kept_by(policy: KeepPolicy, moments: Iterable[Dated], zone: datetime.tzinfo | None = None) -> dict[str, list[str]]:
    """By id of the captures that the policy keeps: why, such as `daily`. Of each branch by itself. `zone`: None: that
    of the machine.
    """
    found: dict[str, list[str]] = {}
    in_order = sorted(moments, key=lambda one: (one.branch, -one.created, one.id))
    for _, history in itertools.groupby(in_order, key=lambda one: one.branch):
        newest_first = list(history)
        for one in newest_first[: policy.last]:
            found.setdefault(one.id, []).append("last")
        for kind, period in _PERIODS.items():
            for one in _of_each(newest_first, getattr(policy, kind), period, zone):
                found.setdefault(one.id, []).append(kind)
    return found


def _of_each(
    newest_first: list[Dated],
    count: int,
    period: Callable[[datetime.datetime], tuple[int, ...]],
    zone: datetime.tzinfo | None,
) -> list[Dated]:
    """The newest of each of the last `count` periods in which there is one."""
    chosen: dict[tuple[int, ...], Dated] = {}
    for one in newest_first:
        at = period(datetime.datetime.fromtimestamp(one.created, zone).astimezone(zone))
        if len(chosen) >= count and at not in chosen:
            break
        chosen.setdefault(at, one)
    return list(chosen.values())[:count]
