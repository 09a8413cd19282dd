"""TCP connections inside a session still work after the CRIU that dumped them was killed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import witness
from tests.chaos.victims import kill
from tests.homes import Home, open_home
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.waiting import PATIENCE_S, wait_until
from waypoint.capture.steps import Step

pytestmark = [pytest.mark.soak(part="criu"), pytest.mark.privileged, pytest.mark.requires("criu")]


@pytest.fixture
def home(pauses: Pauses) -> Iterator[Home]:
    """A home whose session on main runs the witness: a program that talks with a peer over a TCP connection."""
    with open_home("repair") as home:
        home.must("daemon", "stop")
        home.must("shell", "-d", "main", "--user", "nobody", env=pauses.env)
        home.must(
            "exec", "-b", "main", "--", f"{witness.ASK}; python3 {Path(witness.__file__)} /tmp >/tmp/witness.log 2>&1 &"
        )
        wait_until(lambda: "memory" in ask(home, "look"), "the witness answers")
        yield home


def ask(home: Home, word: str) -> str:
    return home.must("exec", "-b", "main", "--timeout", "5", "--", f"ask {word} 2>/dev/null").stdout


@pytest.mark.parametrize("also", [(), ("daemon",)], ids=["criu", "criu and daemon"])
def test_a_tcp_connection_survives_a_killed_criu(home: Home, pauses: Pauses, also: tuple[str, ...]) -> None:
    with (
        pauses.armed(Step.DUMPED) as armed,
        home.background("checkpoint", "k", "--tier", "live") as command,
    ):
        assert armed.wait() == Step.DUMPED
        assert kill(home, ("criu", *also), command) == ["criu", *also]
        if not also:
            armed.go_on()
        assert (command.wait(PATIENCE_S) == 0) == (not also), "another CRIU makes the dump"
    for count in (1, 2):
        assert json.loads(ask(home, "add")) == {"memory": count, "file": count, "peer": count}
    ledger.check(home)
