"""`waypoint events`, and the events of operations, sessions and jobs."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.homes import Home
from tests.waiting import DEADLINE_S, wait_until
from waypoint.client import Client, wire
from waypoint.model.errors import UnknownName
from waypoint.model.paths import socket_path
from waypoint.setup.home_removal import TRIAL_PREFIX

pytestmark = pytest.mark.privileged


@pytest.fixture
def client(home: Home, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("WAYPOINT_HOME", str(home.path))
    return Client(home.path)


def event_list(home: Home) -> list[dict[str, Any]]:
    return [json.loads(line) for line in home.must("events", "--json").stdout.splitlines()]


def kill_daemon(home: Home) -> None:
    os.kill(home.must("daemon", "status", "--json").json()["pid"], signal.SIGKILL)


@pytest.mark.requires("criu")
def test_operation_events_match_op_log(home: Home) -> None:
    begin = event_list(home)[-1]["seq"]
    known = {one["number"] for one in home.must("op", "log", "--json").json()}
    home.must("shell", "ops", "-d")
    home.must("checkpoint", "ops-1", "-b", "ops", "--force")
    home.must("fork", "ops-1", "ops-f")
    home.must("stop", "ops-f", "--discard")
    home.must("rm", "ops-1")
    home.must("undo")
    home.must("stop", "--files", "ops")
    log = [one for one in home.must("op", "log", "--json").json() if one["number"] not in known]
    events = [one for one in event_list(home) if one["kind"] == "operation" and one["seq"] > begin]
    assert len(log) > 6
    assert [(one["number"], one["verb"], one["names"]) for one in events] == [
        (one["number"], one["verb"], sorted({*one["moves"], *one["sessions"]})) for one in reversed(log)
    ]


@pytest.mark.requires("criu")
def test_sessions_have_events_for_start_replacement_and_end(home: Home) -> None:
    begin = event_list(home)[-1]["seq"]
    home.must("shell", "told", "-d")
    first = next(one for one in home.must("ps", "--json").json() if one["branch"] == "told")
    home.must("checkpoint", "told-1", "-b", "told", "--force")
    home.must("restore", "told-1", "-b", "told")
    home.must("stop", "told", "--discard")
    events = [one for one in event_list(home) if one["kind"] == "session" and one["seq"] > begin]
    assert [(one["change"], one["branch"]) for one in events] == [
        ("started", "told"),
        ("replaced", "told"),
        ("ended", "told"),
    ]
    assert (events[0]["session"], events[0]["pid"]) == (first["id"], first["pid"])
    assert events[1]["session"] == events[2]["session"] != first["id"]


def test_an_adopted_session_has_no_start_event(home: Home) -> None:
    home.must("shell", "adopted", "-d")
    kill_daemon(home)
    assert [one for one in event_list(home) if one["kind"] == "session" and one["branch"] == "adopted"] == []
    home.must("stop", "adopted", "--discard")
    (ended,) = [one for one in event_list(home) if one["kind"] == "session" and one["branch"] == "adopted"]
    assert ended["change"] == "ended"


def test_events_are_printed_as_one_line_each(home: Home) -> None:
    home.must("shell", "lines", "-d")
    home.must("stop", "lines", "--discard")
    lines = home.must("events").stdout.splitlines()
    events = [one for one in event_list(home) if one["kind"] != "begin"]
    assert len(lines) == len(events)
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  "
    words = [re.fullmatch(f"{when}(\\w+ +.*)", line)[1] for line in lines]  # type: ignore[index]
    session = next(one for one in events if one["kind"] == "session" and one["branch"] == "lines")
    assert f"session    lines started: session {session['session']}, pid {session['pid']}" in words
    number = next(one["number"] for one in events if one["kind"] == "operation" and one["names"] == ["lines"])
    assert f"operation  {number} start: lines" in words


def test_following_events_continues_with_the_next_daemon(home: Home) -> None:
    home.must("daemon", "status")
    with home.background("events", "--follow", "--json") as following:
        assert following.stdout is not None
        begin = json.loads(following.stdout.readline())
        assert begin["kind"] == "begin"
        kill_daemon(home)
        home.must("shell", "followed", "-d")
        new: list[dict[str, Any]] = []
        while not new or new[-1]["kind"] != "session":
            one = json.loads(following.stdout.readline())
            new += [one] if one["instance"] != begin["instance"] else []
        assert new[0]["kind"] == "restarted"
        assert (new[-1]["change"], new[-1]["branch"]) == ("started", "followed")
        assert [one["seq"] for one in new[1:]] == list(range(1, len(new)))
        home.must("daemon", "stop")
        assert following.wait(DEADLINE_S) == 0
    assert home.must("stop", "followed", "--discard")


def test_the_sdk_follows_events(home: Home, client: Client) -> None:
    events = client.events()
    begin = next(events)
    assert begin["kind"] == "begin"
    known = next(events) if begin["seq"] else begin
    while known["seq"] != begin["seq"]:
        known = next(events)
    session = client.start("sdk")
    one = next(events)
    while one["kind"] != "session":
        one = next(events)
    assert (one["branch"], one["pid"], one["seq"]) == ("sdk", session.refresh().pid, one["seq"])
    session.stop(discard=True)
    events.close()  # type: ignore[attr-defined]
    assert next(client.events(follow=False, after=10**9))["kind"] == "restarted"


# --- jobs


def ask(home: Home, method: str, target: str, body: object = None) -> Any:
    answer = wire.request(socket_path(str(home.path)), method, target, body)
    assert isinstance(answer, dict)
    return answer["job"]


def trial_leftovers(home: Home) -> list[str]:
    return [str(path) for path in home.path.iterdir() if path.name.startswith(TRIAL_PREFIX)]


def doctor_processes(home: Home) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"-c" in words and any(word.startswith(os.fsencode(home.path) + b"/") for word in words):
            found.append(int(process.name))
    return found


@pytest.mark.soak(part="setup")
@pytest.mark.requires("criu")
def test_doctor_can_run_as_a_job(home: Home) -> None:
    home.must("daemon", "status")
    job = ask(home, "POST", "/v1/jobs", {"kind": "doctor"})
    assert (job["kind"], job["state"]) == ("doctor", "running")
    wait_until(lambda: bool(ask(home, "GET", f"/v1/jobs/{job['id']}")["ended"]), "the doctor has ended")
    found = ask(home, "GET", f"/v1/jobs/{job['id']}")
    assert found["state"] == "done"
    rows = {one["capability"]: one["state"] for one in home.cli("doctor", "--json").json()}
    assert {one["name"]: one["state"] for one in found["result"]} == rows
    assert found["progress"]["items"] == found["progress"]["items_total"] == len(rows)
    changes = [one["change"] for one in event_list(home) if one["kind"] == "job" and one["job"]["id"] == job["id"]]
    assert (changes[0], changes[-1]) == ("started", "ended")


@pytest.mark.soak(part="faults")
@pytest.mark.requires("criu")
def test_a_cancelled_doctor_leaves_nothing(home: Home) -> None:
    home.must("daemon", "status")
    job = ask(home, "POST", "/v1/jobs", {"kind": "doctor"})
    wait_until(lambda: bool(doctor_processes(home)), "the doctor's process runs")
    assert ask(home, "POST", f"/v1/jobs/{job['id']}/cancel")["state"] == "cancelled"
    assert doctor_processes(home) == []
    assert trial_leftovers(home) == []
    assert home.cli("doctor", "--json").json()


@pytest.mark.soak(part="faults")
def test_a_job_ends_with_its_daemon(home: Home) -> None:
    home.must("daemon", "status")
    job = ask(home, "POST", "/v1/jobs", {"kind": "doctor"})
    wait_until(lambda: bool(doctor_processes(home)), "the doctor's process runs")
    kill_daemon(home)
    with pytest.raises(UnknownName) as raised:
        ask(home, "GET", f"/v1/jobs/{job['id']}")
    assert "jobs end with their daemon" in raised.value.said
    wait_until(lambda: not doctor_processes(home), "the doctor's process has ended with its daemon")
    home.cli("doctor")  # removes the files of the killed doctor
    assert trial_leftovers(home) == []
