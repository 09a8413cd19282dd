"""Errors of Waypoint as a model and a program read them."""

from waypoint.client.address import find_home
from waypoint.model.errors import WaypointError, as_text
from waypoint.model.verbs.advice import on_home


def error_facts(error: WaypointError, home: str) -> dict[str, object]:
    """The parts of an error (docs/protocol.md, section 1)."""
    return {**error.to_json(), "next": as_text(_on(error.next_step, home))}


def error_text(error: WaypointError, home: str) -> str:
    """The error for the model: its message with the next step, and its code."""
    return as_text(f"{_on(str(error), home)}\n  code: {error.code}")


def _on(text: str, home: str) -> str:
    return on_home(text, home, find_home())
