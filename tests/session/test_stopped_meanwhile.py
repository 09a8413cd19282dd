"""A daemon that is stopped while a session stands still for a capture: the session goes on, with no daemon there."""

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.homes import Home
from tests.session import ledger
from tests.session.pauses import Pauses, home_with
from tests.waiting import PATIENCE_S
from waypoint.capture.steps import Step
from waypoint.client import Client, Session
from waypoint.linux.tasks import pidfd

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

INSIDE = ("run", "-b", "{}", "--", "waypoint", "checkpoint", "inside")
PARK = ("checkpoint", "parked", "-b", "{}", "--park")
_NUMBERS = itertools.count(1)


home = pytest.fixture(scope="module")(home_with)


@pytest.fixture
def session(home: Home) -> Iterator[Session]:
    live = Client(home.path).start(f"main{next(_NUMBERS)}")
    live.exec("kept=yes")
    yield live
    live.stop(discard=True)


def is_frozen(home: Home, session: Session) -> bool:
    return (ledger.group_of(home) / session.facts.id / "cgroup.freeze").read_text() != "0\n"


@pytest.mark.parametrize("asked", [INSIDE, PARK], ids=["from inside", "for longer than requests are waited for"])
def test_the_session_runs_when_the_daemon_has_ended(
    home: Home, session: Session, pauses: Pauses, asked: tuple[str, ...]
) -> None:
    daemon = pidfd.open(Client(home.path).status().pid)
    argv = [word.format(session.branch) for word in asked]
    with pauses.armed(Step.DUMPED) as armed, home.background(*argv) as command:
        assert armed.wait() == Step.DUMPED
        with home.background("daemon", "stop") as stopping:
            command.wait(PATIENCE_S + 5.0)  # at once if it is a stream, else requests are waited for 5 s
            assert not pidfd.wait_ended(daemon, 0.2), "it waits for the capture"
            armed.go_on()
            assert stopping.wait(PATIENCE_S) == 0
    assert pidfd.wait_ended(daemon, PATIENCE_S)
    os.close(daemon)
    assert not is_frozen(home, session)
    kept = [set(one.names) for one in Client(home.path).history.log(all=True) if one.branch == session.branch]
    assert kept == ([{session.branch, "inside"}] if asked is INSIDE else [])
    assert session.exec("echo $kept").output == b"yes\n"
    ledger.check(home)
