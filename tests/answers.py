"""Reading answers of Waypoint in tests."""

from collections.abc import Iterable
from typing import Any


def texts(items: Iterable[Any] | None) -> list[str]:
    """The sentences of the conditions in an answer (ConditionFacts)."""
    return [str(one["text"]) for one in items or ()]
