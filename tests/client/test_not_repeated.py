"""Requests that change state are sent once, even if the daemon dies."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.conftest import HOME
from tests.client.peer import Talk, listening
from waypoint.cli import entry
from waypoint.client import Client
from waypoint.model.errors import Failed

CHANGES: dict[str, Callable[[Client], object]] = {
    "POST /v1/sessions/a%2Fb/checkpoint": lambda client: client.session("a/b").checkpoint("c"),
    "POST /v1/sessions/a%2Fb/restore": lambda client: client.session("a/b").restore("c", only="files"),
    "POST /v1/sessions/a%2Fb/stop": lambda client: client.session("a/b").stop(checkpoint="c"),
    "POST /v1/forks": lambda client: client.fork("c", "a/b"),
    "POST /v1/restores": lambda client: client.restore("c"),
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
    **dict.fromkeys(("capture", "branch", "tier", "reason", "message", "created", "base", "user", "cwd"), "x"),
    **{name: [] for name in ("names", "parents", "degraded", "environment")},
    **{name: {} for name in ("layers", "machine")},
    **dict.fromkeys(("image", "exit", "paused_ms")),
    "durable": False,
}


@pytest.mark.parametrize("target", CHANGES)
def test_a_request_that_changes_state_is_sent_once(socket: Path, target: str) -> None:
    asked = []

    def die(talk: Talk) -> None:
        asked.append(talk.request()[0])

    with listening(socket, die), pytest.raises(Failed, match="get an answer"):
        CHANGES[target](Client(HOME))
    assert asked == [target]


@pytest.mark.parametrize("target", LOOKS)
def test_a_read_request_is_repeated_to_the_next_daemon(socket: Path, target: str) -> None:
    asked = []

    def die(talk: Talk) -> None:
        asked.append(talk.request()[0])

    def answer(talk: Talk) -> None:
        die(talk)
        talk.answer(200, {"captures": [], "capture": CAPTURE, "branches": [], "operations": []})

    with listening(socket, die, answer):
        LOOKS[target](Client(HOME))
    assert asked == [target] * 2


def test_the_sdk_sends_the_documented_requests(socket: Path) -> None:
    bodies = []

    def note(talk: Talk) -> None:
        bodies.append(talk.request()[1])

    for call in CHANGES.values():
        with listening(socket, note), pytest.raises(Failed):
            call(Client(HOME))
    assert bodies == [
        {"name": "c", "message": "", "tier": "auto", "force": False, "park": False},
        {"name": "c", "only": "files", "lose_processes": False},
        {"discard": False, "checkpoint": "c"},
        {"name": "c", "branches": ["a/b"], "count": None, "prefix": None},
        {"name": "c", "only": None},
        {"to": "c"},
        {"names": ["a/b", "c"]},
        {"number": 7, "branch": None, "lose_processes": False, "force": False},
    ]


OPERATION = {
    "number": 18,
    "at": "2026-01-01T00:00:00.000Z",
    "verb": "undo",
    "moves": {},
    "sessions": {},
    "undone": False,
    "undoes": 17,
    "undo": None,
    "said": "it changed no name and no session",
    "note": "",
    "degraded": [],
}
LOST = {"code": "processes-not-kept", "subject": "", "detail": "", "text": "the processes"}
UNDONE = {"number": 17, "verb": "remove", "undo": "move one back to 0123456789ab", "lost": [], "degraded": []}


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_undo_plans_first_and_then_acts_once(
    socket: Path, options: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def plan(talk: Talk) -> None:
        asked.append(talk.request())
        talk.answer(200, {"operation": None, "undone": {**UNDONE, "lost": [LOST]}})

    def answer(talk: Talk) -> None:
        asked.append((*talk.request(), capfd.readouterr().err))
        talk.answer(200, {"operation": OPERATION, "undone": UNDONE})

    with listening(socket, plan, answer):
        assert entry.run(["undo", "17", "--home", HOME, *options]) == 0
    assert asked == [
        ("POST /v1/operations/undo", {"number": 17, "branch": None, "dry_run": True}),
        (
            "POST /v1/operations/undo",
            {"number": 17, "branch": None, "lose_processes": False, "force": False},
            "will be lost: the processes\n",
        ),
    ]
    printed = capfd.readouterr().out
    if options:
        assert json.loads(printed) == {**OPERATION, "lost": [], "degraded": []}
    else:
        assert printed == "undo of operation 17 (remove): move one back to 0123456789ab\n"
