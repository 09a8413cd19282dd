"""JSON output, and control characters in messages, which are replaced."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from waypoint.cli import output
from waypoint.cli.output import print_json, print_json_line
from waypoint.daemon import lifetime
from waypoint.model.facts import ForkFacts
from waypoint.model.rendering import table
from waypoint.model.session_facts import SessionFacts

SESSION = SessionFacts(branch="b\u00e4\x9b", state="live", created="2026-01-01T00:00:00.000Z", shared=["/mnt"])
VALUE = [ForkFacts(branch="b", pid=1, ms=0.5, session=SESSION), {"exit": None, "pair": (1, "x")}]


@pytest.fixture(params=[False, True], ids=["pipe", "terminal"])
def printed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(os, "isatty", lambda fd: request.param)
    print_json(VALUE)
    return capfd.readouterr().out


def test_nested_records_become_json_objects(printed: str) -> None:
    [fork, other] = json.loads(printed)
    assert list(fork) == ["branch", "pid", "ms", "session"]
    assert fork["session"]["branch"] == SESSION.branch
    assert list(fork["session"])[:3] == ["branch", "state", "created"]
    assert (fork["session"]["shared"], fork["session"]["pid"]) == (["/mnt"], None)
    assert other == {"exit": None, "pair": [1, "x"]}


def test_json_is_printed_in_ascii(printed: str) -> None:
    assert printed.isascii()


def test_json_is_one_line_in_a_pipe_and_indented_on_a_terminal(printed: str, request: pytest.FixtureRequest) -> None:
    is_terminal = request.node.name.endswith("[terminal]")
    assert printed.endswith("\n")
    assert (printed.count("\n") > 1) == is_terminal


@pytest.mark.parametrize("is_terminal", [False, True])
def test_each_json_value_of_a_stream_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, is_terminal: bool
) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: is_terminal)
    print_json_line({"names": ["\u00e4"]})
    assert capfd.readouterr().out == '{"names": ["\\u00e4"]}\n'


def test_a_value_without_a_json_form_raises_a_type_error() -> None:
    with pytest.raises(TypeError, match="set has no form in JSON"):
        print_json({"a": set()})


HOSTILE = "name \x1b[2J\x07\x9b\r of ä"


@pytest.mark.parametrize(
    ("show", "seen"),
    [
        (lambda: output.print_error(f"{HOSTILE}\n  next: go"), "waypoint: name ?[2J??? of ä\n  next: go\n"),
        (lambda: output.warn("degraded", [f"{HOSTILE}\n"]), "degraded: name ?[2J??? of ä?\n"),
        (lambda: output.print_lines(table(["NAME"], [[HOSTILE]])), "NAME\nname ?[2J??? of ä\n"),
    ],
)
def test_control_characters_are_not_printed(
    capfd: pytest.CaptureFixture[str], show: Callable[[], object], seen: str
) -> None:
    show()
    assert "".join(capfd.readouterr()) == seen


def test_control_characters_are_not_in_the_log_of_the_daemon(tmp_path: Path) -> None:
    record = logging.LogRecord("waypoint", logging.ERROR, "", 0, "CRIU said: %s\n\tat", (HOSTILE,), None)
    assert lifetime._BoundedLog(str(tmp_path)).format(record) == "CRIU said: name ?[2J??? of ä\n\tat"
