"""The SDK on the real daemon: what a `with` ends, and jobs to their end."""

import contextlib
import os
import signal

import pytest

from waypoint.client import Client
from waypoint.client.calls.job_calls import JobCalls
from waypoint.client.results import JobRecord
from waypoint.model.errors import UnknownName

pytestmark = pytest.mark.privileged


def live(client: Client) -> list[str]:
    return [one.branch for one in client.sessions()]


def test_a_with_ends_what_it_has_begun_and_keeps_its_files(client: Client) -> None:
    with client.start("w1", cwd="/usr") as session:
        session.exec("echo kept > /var/tmp/kept")
        with client.start("w1") as same, client.session("w1") as named:  # it is live: neither has begun it
            assert same.facts.id == named.facts.id == session.facts.id
        session.checkpoint("w1-point")
        session.restore("w1-point")  # in place: it is another session now
        first, second = client.fork("w1", "w1-a", "w1-b")
        with first, contextlib.suppress(ZeroDivisionError), second:
            assert live(client) == ["w1", "w1-a", "w1-b"]
            raise ZeroDivisionError
        assert live(client) == ["w1"]
    assert live(client) == []
    with client.start("w1") as again:
        assert again.run("cat", "/var/tmp/kept").stdout == b"kept\n"
        again.stop(discard=True)  # it has ended when the with does
    with client.start("w1") as mine:
        mine.stop()
        client.start("w1")  # somebody else's
    assert live(client) == ["w1"]
    client.session("w1").stop(discard=True)


def test_a_job_is_started_and_waited_for(client: Client) -> None:
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


def test_a_job_that_dies_with_its_daemon_is_not_waited_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    job, daemon, get = client.jobs.start("doctor"), client.status().pid, JobCalls.get

    def get_and_kill(calls: JobCalls, which: str) -> JobRecord:
        found = get(calls, which)
        os.kill(daemon, signal.SIGKILL)
        return found

    monkeypatch.setattr(
        JobCalls, "get", get_and_kill
    )  # as the wait begins: the job runs, and the events are listened to
    with pytest.raises(UnknownName, match="jobs end with their daemon"):
        client.jobs.wait(job.id)
    client.doctor()  # removes what is left of a trial whose daemon was killed
