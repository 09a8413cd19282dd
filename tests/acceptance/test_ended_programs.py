"""Who ends a session is told of the programs that end with it, and of what would have kept them."""

from collections.abc import Callable

import pytest

from tests.acceptance.seat import Seat
from tests.acceptance.sessions import inside, session
from tests.homes import Home
from tests.waiting import until_runs

pytestmark = [pytest.mark.privileged]

KEPT = "('waypoint checkpoint NAME --park' ends a session with its programs kept)"


def test_stop_tells_of_programs_and_so_does_what_goes_on(home: Home) -> None:
    with session(home, "root") as branch:
        inside(home, branch, f"sleep 1000 & (setsid sleep 1001 &); {until_runs('sleep 1000', 'sleep 1001')}")
        said = f"degraded: 2 programs ended with the session: sleep 1000; sleep 1001 {KEPT}\n"
        assert home.must("stop", branch).stderr == said
        assert said in home.must("shell", branch, "-d").stderr
        inside(home, branch, "sleep 0 & wait")
        assert home.must("stop", branch).stderr == "", "nothing ran"


def test_leaving_the_shell_tells_of_programs(home: Home, seat: Callable[..., Seat]) -> None:
    with session(home, "root") as branch:
        started = until_runs("sleep 1000", "sh -c sleep 1001; :", "sleep 1001")
        inside(home, branch, f"sleep 1000 & (setsid sh -c 'sleep 1001; :' &); {started}")
        taken = seat()
        taken.type(f"waypoint attach {branch}\r".encode()).prompt()
        taken.type(b"exit\r").see(b"degraded: 2 programs ended with the session: sleep; sh .'waypoint")
        home.must("shell", branch, "-d")
        inside(home, branch, f"sleep 1002 & {until_runs('sleep 1002')}")
        assert home.cli("exec", "-b", branch, "exit 3").code == 3
        again = home.must("shell", branch, "-d").stderr
        assert f"degraded: 1 program ended with the session: sleep {KEPT}\n" in again
        assert home.cli("exec", "-b", branch, "exit 3").code == 3
        assert "ended with" not in home.must("shell", branch, "-d").stderr, "nothing ran"
