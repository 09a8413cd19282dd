"""Requests that change what they find are asked once, whatever becomes of the daemon."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.conftest import HOME
from tests.client.peer import Talk, listening
from waypoint.client import Client
from waypoint.model.errors import Failed

CHANGES: dict[str, Callable[[Client], object]] = {
    "POST /v1/sessions/a%2Fb/checkpoint": lambda client: client.session("a/b").checkpoint("c"),
    "POST /v1/sessions/a%2Fb/restore": lambda client: client.session("a/b").restore("c", only="files"),
    "POST /v1/sessions/a%2Fb/stop": lambda client: client.session("a/b").stop(checkpoint="c"),
    "POST /v1/forks": lambda client: client.fork("c", "a/b"),
    "POST /v1/branches/a%2Fb/rename": lambda client: client.history.rename("a/b", "c"),
    "POST /v1/names/remove": lambda client: client.history.remove("a/b", "c"),
    "POST /v1/operations/undo": lambda client: client.history.undo(7),
}
LOOKS: dict[str, Callable[[Client], object]] = {
    "GET /v1/captures?name=a%2Fb&limit=3": lambda client: client.history.log("a/b", limit=3),
    "GET /v1/captures/a%2Fb": lambda client: client.history.show("a/b"),
    "GET /v1/branches": lambda client: client.history.branches(),
    "GET /v1/operations?limit=3": lambda client: client.history.operations(3),
}
CAPTURE = {
    **dict.fromkeys(("capture", "branch", "tier", "reason", "message", "created", "base"), "x"),
    "names": [],
    "parents": [],
    "layers": {},
}


@pytest.mark.parametrize("target", CHANGES)
def test_a_change_is_asked_once(socket: Path, target: str) -> None:
    asked = []

    def die(talk: Talk) -> None:
        asked.append(talk.request()[0])

    with listening(socket, die), pytest.raises(Failed, match="get an answer"):
        CHANGES[target](Client(HOME))
    assert asked == [target]


@pytest.mark.parametrize("target", LOOKS)
def test_a_look_is_asked_again_of_the_next_daemon(socket: Path, target: str) -> None:
    asked = []

    def die(talk: Talk) -> None:
        asked.append(talk.request()[0])

    def answer(talk: Talk) -> None:
        die(talk)
        talk.answer(200, {"captures": [], "capture": CAPTURE, "branches": [], "operations": []})

    with listening(socket, die, answer):
        LOOKS[target](Client(HOME))
    assert asked == [target] * 2


def test_what_is_asked_for_is_said(socket: Path) -> None:
    bodies = []

    def note(talk: Talk) -> None:
        bodies.append(talk.request()[1])

    for call in CHANGES.values():
        with listening(socket, note), pytest.raises(Failed):
            call(Client(HOME))
    assert bodies == [
        {"name": "c", "message": "", "tier": "auto", "force": False, "park": False},
        {"name": "c", "only": "files"},
        {"discard": False, "checkpoint": "c"},
        {"name": "c", "branches": ["a/b"], "count": None, "prefix": None},
        {"to": "c"},
        {"names": ["a/b", "c"]},
        {"number": 7},
    ]
