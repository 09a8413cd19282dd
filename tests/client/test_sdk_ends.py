"""The SDK with the real daemon: sessions as context managers, and jobs."""

import contextlib
import os
import signal
import threading

import pytest

from waypoint.client import Client
from waypoint.model.errors import UnknownName

pytestmark = pytest.mark.privileged


def live(client: Client) -> list[str]:
    return [one.branch for one in client.sessions()]


def test_with_stops_a_session_that_it_started_and_keeps_its_files(client: Client) -> None:
    with client.start("w1", cwd="/usr") as session:
        session.exec("echo kept > /var/tmp/kept")
        with client.start("w1") as same, client.session("w1") as named:  # the session runs already, so neither stops it
            assert same.facts.id == named.facts.id == session.facts.id
        session.checkpoint("w1-point")
        session.restore("w1-point")  # a new session replaces it
        first, second = client.fork("w1", "w1-a", "w1-b")
        with first, contextlib.suppress(ZeroDivisionError), second:
            assert live(client) == ["w1", "w1-a", "w1-b"]
            raise ZeroDivisionError
        assert live(client) == ["w1"]
    assert live(client) == []
    with client.start("w1") as again:
        assert again.run("cat", "/var/tmp/kept").stdout == b"kept\n"
        again.stop(discard=True)  # the session ends before the `with` does
    with client.start("w1") as mine:
        mine.stop()
        client.start("w1")  # a session of another caller
    assert live(client) == ["w1"]
    client.session("w1").stop(discard=True)


def test_a_job_can_be_started_and_awaited(client: Client) -> None:
    job = client.jobs.start("gc")
    assert (job.kind, job.state, job.result) == ("gc", "running", None)
    done = client.jobs.wait(job.id)
    assert (done.id, done.state, done.error) == (job.id, "done", None)
    assert isinstance(done.result, dict)
    assert done.result["failed"] == []
    assert client.jobs.wait(job.id) == client.jobs.get(job.id) == done
    assert [(one.id, one.result) for one in client.jobs.list() if one.id == job.id] == [(job.id, None)]
    assert client.jobs.cancel(job.id).state == "done"
    with pytest.raises(UnknownName):
        client.jobs.wait("nosuch")


@pytest.mark.soak(part="faults")
def test_waiting_for_a_job_ends_if_its_daemon_dies(client: Client) -> None:
    job = client.jobs.start("doctor")
    killer = threading.Timer(0.2, lambda: os.kill(client.status().pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(UnknownName, match="jobs end with their daemon"):
        client.jobs.wait(job.id)
    killer.join()
    client.doctor()  # removes the files of the killed doctor
