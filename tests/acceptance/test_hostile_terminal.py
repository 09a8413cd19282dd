"""A daemon is killed and restarted while the pid 1 of a session no longer holds the master of its terminal."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside
from tests.homes import Home, open_home
from tests.waiting import DEADLINE_S, wait_until
from waypoint.linux.tasks import pidfd

pytestmark = pytest.mark.privileged

GIVEN_UP = {
    "null": "exec 3</dev/null",
    "file": "exec 3</etc/hostname",
    "fifo": "mkfifo /f; exec 3<>/f",
    "closed": "exec 3<&-",
    "end": "mkfifo /f; exec 4<>/f 3</f 4<&-",
}


def kill_daemon(home: Home) -> None:
    pid = home.must("daemon", "status", "--json").json()["pid"]
    fd = pidfd.open(pid)
    os.kill(pid, signal.SIGKILL)
    assert pidfd.wait_ended(fd, DEADLINE_S)
    os.close(fd)


def states(home: Home) -> dict[str, str]:
    return {one["branch"]: one["state"] for one in home.must("ps", "--all", "--json").json()}


@pytest.mark.soak(part="floods")
def test_a_session_that_gave_up_its_terminal_is_reported_and_can_be_stopped() -> None:
    with open_home() as home:
        for name, step in GIVEN_UP.items():
            home.must("shell", name, "-d", "--user", "root")
            script = f"trap : HUP; sleep 9999 & {step}; : >/ready; wait; wait; wait"
            inside(home, name, f"printf '#!/bin/sh\\n%s\\n' '{script}' >/.waypoint/init.sh")
            home.must("stop", "--files", name)
            home.must("shell", name, "-d", "--user", "root")
        for name in GIVEN_UP:
            home.must("run", "-b", name, "--", "sh", "-c", "until [ -e /ready ]; do sleep 0.01; done")
        kill_daemon(home)
        assert states(home) == dict.fromkeys(GIVEN_UP, "unreachable")
        log = (home.path / "daemon.log").read_text()
        for name in GIVEN_UP:
            assert f"cannot reach the session on {name}, which is kept: " in log
            refused = home.cli("exec", "-b", name, "--", "true")
            assert (refused.code, "its pid 1 has " in refused.stderr) == (125, True)
            home.must("stop", "--files", name)
        assert states(home) == dict.fromkeys(GIVEN_UP, "ended")


def test_the_end_of_a_session_while_no_daemon_runs_is_logged() -> None:

    with open_home() as home:
        home.must("shell", "ends", "-d", "--user", "root")
        found = json.loads(next(Path(home.runtime, "sessions").glob("*/record.json")).read_text())
        supervisor = int((home.runtime / "supervisor.lock").read_text().split()[0])
        os.kill(supervisor, signal.SIGSTOP)
        kill_daemon(home)
        os.kill(found["init_pid"], signal.SIGKILL)
        os.kill(supervisor, signal.SIGCONT)
        wait_until(lambda: states(home) == {"ends": "ended"}, "the end of the session is recorded")
        assert (
            "the session on ends has ended while no daemon ran; its files are kept"
            in (home.path / "daemon.log").read_text()
        )
