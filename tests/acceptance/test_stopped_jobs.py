"""A job that the terminal has stopped, as it reads from there or changes it in the background, is kept as any other."""

import pytest

from tests.acceptance.moments import new_name, started
from tests.homes import Home
from tests.waiting import wait_until
from waypoint.client import Client, Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

JOBS = {
    "reads": "cat </dev/pts/0 >/srv/read &",
    "changes": "(stty -F /dev/pts/0 -echoctl; exec sleep 1000) &",
}


def is_stopped(session: Session) -> bool:
    """The shell's job, and as the shell knows."""
    said = session.exec("jobs; cat /proc/$(jobs -p)/status").output
    return b"Stopped" in said and b"State:\tT" in said


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_job_that_the_terminal_has_stopped_is_kept_with_all_others(home: Home, job: str) -> None:
    with started(home, "root") as session:
        session.exec(job)
        wait_until(lambda: is_stopped(session), "the terminal has stopped it")
        name = new_name(session)
        assert session.checkpoint(name, tier="live").degraded == []
        (copy,) = Client(home.path).fork(name, f"{session.branch}-1")
        assert is_stopped(session)
        assert is_stopped(copy)
