"""Jobs: start, progress, cancellation, and results that are fetched later."""

import asyncio
import contextlib
import json
import select
from typing import Any

import pytest

from tests.daemon.conftest import RunningServer
from tests.daemon.raw_client import RawClient
from waypoint.service.background import jobs
from waypoint.service.background.jobs import PROGRESS_S, Job


def start(client: RawClient, kind: str) -> str:
    answer = client.ask("POST", "/v1/jobs", {"kind": kind})
    assert answer.status == 201
    job = answer.json["job"]
    assert (job["kind"], job["state"], job["ended"], job["result"]) == (kind, "running", None, None)
    return str(job["id"])


def ended(client: RawClient, job: str) -> dict[str, Any]:
    while True:
        found: dict[str, Any] = client.ask("GET", f"/v1/jobs/{job}").json["job"]
        if found["state"] != "running":
            return found


def events_of(client: RawClient, job: str) -> list[dict[str, Any]]:
    lines = client.ask("GET", "/v1/events").body.splitlines()
    return [one for one in map(json.loads, lines) if one["kind"] == "job" and one["job"]["id"] == job]


def test_the_result_of_a_job_can_be_fetched_when_it_is_done(client: RawClient) -> None:
    job = start(client, "count")
    found = ended(client, job)
    assert (found["state"], found["result"], found["error"]) == ("done", {"counted": 1000}, None)
    assert found["progress"] == {"bytes": 64000, "bytes_total": None, "items": 1000, "items_total": 1000}
    assert found["ended"] >= found["started"]
    assert client.ask("GET", f"/v1/jobs/{job}").json["job"] == found  # a second request gets the result too
    [listed] = client.ask("GET", "/v1/jobs").json["jobs"]
    assert listed == {**found, "result": None}


def test_a_job_continues_when_its_client_has_disconnected(server: RunningServer) -> None:
    with server.connect() as one:
        job = start(one, "count")
    with server.connect() as other:
        assert ended(other, job)["state"] == "done"


def test_a_cancelled_job_has_ended_when_the_cancellation_is_answered(server: RunningServer, client: RawClient) -> None:
    job = start(client, "wait")
    while job not in server.service.requests:
        client.ask("GET", "/v1/status")
    found = client.ask("POST", f"/v1/jobs/{job}/cancel").json["job"]
    assert (found["state"], found["result"], found["error"]) == ("cancelled", None, None)
    assert server.service.ended_streams == [job]
    assert client.ask("POST", f"/v1/jobs/{job}/cancel").json["job"] == found  # a second cancellation changes nothing
    assert [one["change"] for one in events_of(client, job)] == ["started", "ended"]


def test_a_cancelled_job_that_takes_long_to_end_is_reported_as_running(
    server: RunningServer, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "CANCEL_S", 0.01)
    made: list[str] = []

    async def stubborn(job: Job) -> object:
        made.append(job.id)
        with contextlib.suppress(asyncio.CancelledError):
            await server.service.released.wait()
        await server.service.released.wait()
        return "late"

    server.on_loop(lambda: server.service.jobs.start("stubborn", stubborn))
    while not made:
        client.ask("GET", "/v1/status")
    assert client.ask("POST", f"/v1/jobs/{made[0]}/cancel").json["job"]["state"] == "running"
    server.on_loop(server.service.released.set)
    assert ended(client, made[0])["result"] == "late"


def test_one_job_of_a_kind_runs_at_a_time(server: RunningServer, client: RawClient) -> None:
    job = start(client, "wait")
    for _ in range(3):
        refused = client.ask("POST", "/v1/jobs", {"kind": "wait"})
        assert (refused.status, refused.json["error"]) == (
            409,
            {
                "code": "conflict",
                "exit": 4,
                "tried": "start",
                "on": "a wait job",
                "said": f"the job {job} of this kind is already running",
                "next": "'waypoint events' shows when it has ended; try again then",
            },
        )
    assert ended(client, start(client, "count"))["state"] == "done"
    assert len(client.ask("GET", "/v1/jobs").json["jobs"]) == 2
    client.ask("POST", f"/v1/jobs/{job}/cancel")
    client.ask("POST", f"/v1/jobs/{start(client, 'wait')}/cancel")


def test_a_job_can_be_cancelled_before_its_first_step(server: RunningServer, client: RawClient) -> None:
    made: list[str] = []

    async def never(job: Job) -> object:
        raise AssertionError("the job was begun")

    def start_and_cancel() -> None:
        job = server.service.jobs.start("never", never)
        server.service.jobs._tasks[job.id].cancel()
        made.append(job.id)

    server.on_loop(start_and_cancel)
    while not made:
        client.ask("GET", "/v1/status")
    assert ended(client, made[0])["state"] == "cancelled"


def test_the_error_of_a_failed_job_has_all_its_fields(client: RawClient) -> None:
    found = ended(client, start(client, "refuse"))
    assert found["state"] == "failed"
    assert found["error"] == {
        "code": "host-lacks",
        "exit": 3,
        "tried": "count",
        "on": "the machine's fingers",
        "said": "there are none",
        "next": "count on something else",
    }


def test_a_job_that_fails_by_a_bug_is_logged_without_values(
    client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    found = ended(client, start(client, "surprise"))
    assert (found["state"], found["error"]["code"]) == ("failed", "bug")
    assert "the job surprise" in caplog.text
    assert "KeyError" in caplog.text


def test_an_unknown_job_id_is_an_unknown_name(client: RawClient) -> None:
    for method, target in (("GET", "/v1/jobs/0123456789abcdef"), ("POST", "/v1/jobs/0123456789abcdef/cancel")):
        answer = client.ask(method, target)
        assert (answer.status, answer.json["error"]["code"]) == (404, "unknown-name")
        assert "jobs end with their daemon" in answer.json["error"]["said"]
        assert answer.json["error"]["next"]


def test_progress_is_reported_at_most_ten_times_a_second_and_at_the_end(client: RawClient) -> None:
    job = start(client, "count")
    found = ended(client, job)
    select.poll().poll(3000 * PROGRESS_S)  # a delayed report would arrive in this time
    told = events_of(client, job)
    assert [told[0]["change"], told[-1]["change"]] == ["started", "ended"]
    assert told[-1]["job"] == {**found, "result": None}
    items = [one["job"]["progress"]["items"] for one in told]
    assert items == sorted(items)
    assert {one["change"] for one in told[1:-1]} <= {"progress"}
    assert len(told) <= 4  # the job takes less than a tenth of a second


def test_a_bounded_number_of_results_is_kept_for_a_bounded_time(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT", 2)
    running = start(client, "wait")
    made = []
    for _ in range(4):
        made.append(start(client, "refuse"))
        ended(client, made[-1])
    listed = [one["id"] for one in client.ask("GET", "/v1/jobs").json["jobs"]]
    assert listed == [running, *made[-2:]]
    assert client.ask("GET", f"/v1/jobs/{made[0]}").status == 404
    monkeypatch.setattr(jobs, "KEPT_S", 0.0)
    assert [one["id"] for one in client.ask("GET", "/v1/jobs").json["jobs"]] == [running]
    client.ask("POST", f"/v1/jobs/{running}/cancel")
