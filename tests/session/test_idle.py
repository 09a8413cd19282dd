"""Sessions that park themselves: `shell --idle-park` and `--ttl`."""

import json
from typing import Any

import pytest

from tests.acceptance.sessions import inside, session
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


def entry(home: Home, branch: str) -> dict[str, Any]:
    (found,) = (one for one in home.must("ps", "--all", "--json").json() if one["branch"] == branch)
    return dict(found)


def is_parked(home: Home, branch: str) -> bool:
    return bool(entry(home, branch)["state"] == "parked")


def events(home: Home, branch: str) -> list[tuple[str, str, str]]:
    lines = map(json.loads, home.must("events", "--json").stdout.splitlines())
    found = [one for one in lines if one["kind"] == "park" and one["branch"] == branch]
    return [(one["change"], one["why"], one["tier"]) for one in found]


def test_an_unused_session_is_parked_and_two_commands_at_once_bring_it_back_once(home: Home) -> None:
    with session(home, "root", "--idle-park", "1s") as name:
        inside(home, name, "X=kept; sleep 100000 & true")
        wait_until(lambda: is_parked(home, name), "nobody uses the session, so it is parked")
        assert entry(home, name)["parked_by"] == "idle"
        with home.background("exec", "-b", name, "echo $X") as one, home.background("run", "-b", name, "true") as two:
            assert (one.wait(PATIENCE_S), two.wait(PATIENCE_S)) == (0, 0)
        assert inside(home, name, "echo $X; jobs -r | wc -l").split() == ["kept", "1"]
        parks = events(home, name)
        assert parks[:2] == [("parked", "idle", "live"), ("returned", "idle", "live")]
        assert [change for change, *_ in parks] == (["parked", "returned"] * len(parks))[: len(parks)]
        last = home.must("op", "log", "--json").json()
        assert {one["verb"] for one in last if name in one["sessions"]} >= {"idle-park", "return"}


def test_a_session_whose_programs_run_is_not_parked(home: Home) -> None:
    with session(home, "root", "--idle-park", "1s") as name:
        inside(home, name, "while :; do :; done & true")
        left, looks = 0.0, 0

        def was_looked_at_twice() -> bool:
            nonlocal left, looks
            now = entry(home, name)
            assert now["state"] == "live"
            looks += now["parks_in_s"] > left
            left = now["parks_in_s"]
            return bool(looks > 2)

        wait_until(was_looked_at_twice, "the daemon has looked at the session twice")


def test_a_deadline_that_passed_without_a_daemon_counts(home: Home) -> None:
    with session(home, "root", "--idle-park", "1h") as name:
        inside(home, name, "X=kept")
        (kept,) = (home.runtime / "sessions" / entry(home, name)["id"]).glob("idle.json")
        wait_until(lambda: entry(home, name)["parks_in_s"] < 3599.5, "the look after the command is kept")
        home.must("daemon", "stop")
        kept.write_text(json.dumps({**json.loads(kept.read_text()), "at": -1e6}))
        wait_until(lambda: is_parked(home, name), "the new daemon parks the session")
        assert inside(home, name, "echo $X") == "kept\n"


def test_a_session_whose_time_is_over_is_parked_until_a_shell_continues_it(home: Home) -> None:
    with session(home, "root", "--ttl", "1s") as name:
        with home.background("exec", "-b", name, "X=kept; while :; do :; done"):
            wait_until(lambda: is_parked(home, name), "the session is parked although it is used")
        found = entry(home, name)
        assert (found["parked_by"], found["ends_in_s"]) == ("ttl", None)
        refused = home.cli("exec", "-b", name, "true")
        assert refused.code == 125
        assert f"waypoint shell {name}" in refused.stderr
        again = home.must("shell", name, "-d", "--json", "--user", "root", "--ttl", "0").json()
        assert (again["degraded"], again["ends_in_s"]) == (None, None)
        assert events(home, name)[0] == ("parked", "ttl", "live")
