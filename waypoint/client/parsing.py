"""From the daemon's answers to records (`waypoint.model.facts`).

The SDK's modules that are loaded for a single call import little at once: most verbs of the command line are one call,
and all that the SDK can do takes 60 ms of a processor to load. What a call needs, it imports; a record's module is
loaded when the record is taken from `facts`.
"""

from waypoint.client.wire import nonsense

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    Record = TypeVar("Record")
    """One of the dataclasses of `waypoint.model.facts`."""


def parse(kind: "type[Record]", value: object, **parsed: object) -> "Record":
    """The JSON object `value` as a record; fields that a newer daemon adds are left out. `parsed`: the fields that are
    records themselves.

    Raises Failed if `value` is no object or lacks a field.
    """
    try:
        if not isinstance(value, dict):
            raise TypeError(f"got {type(value).__name__}")
        names: Iterable[str] = kind.__dataclass_fields__  # type: ignore[attr-defined]  # no TypeVar is bound to such
        return kind(**{name: value[name] for name in names if name in value} | parsed)
    except TypeError as error:
        raise nonsense(f"no {kind.__name__}: {error}") from error


def parse_list(kind: "type[Record]", answer: object, name: str) -> "list[Record]":
    """The list in the field `name` of an answer, as records; empty if there is none. Raises as `parse`."""
    found = field_of(answer, name)
    return [parse(kind, item) for item in found] if isinstance(found, list) else []


def field_of(answer: object, name: str) -> object:
    """One field of an answer; None if the answer has none of this name."""
    return answer.get(name) if isinstance(answer, dict) else None
