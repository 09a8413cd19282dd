"""Reading answers of Waypoint in tests."""

from collections.abc import Iterable
from typing import Any


def texts(items: Iterable[Any] | None) -> list[str]:
    """The sentences of the conditions in an answer (ConditionFacts), without those that most sessions have."""
    return [str(one["text"]) for one in unusual(items)]


def unusual(items: Iterable[Any] | None) -> list[Any]:
    """The conditions in an answer, without those that most sessions have."""
    return [one for one in items or () if not (isinstance(one, dict) and one.get("usual"))]
