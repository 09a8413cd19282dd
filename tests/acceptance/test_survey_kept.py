"""`show CAPTURE` tells which processes the capture had, each with the tier that it has reached, and why."""

from pathlib import Path

import pytest

from tests.acceptance.moments import new_name, started
from tests.homes import Home
from waypoint.client import Client, Session
from waypoint.model.details.process_facts import SurveyedProcess

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

SECRET = "python3 -c 'import time; time.sleep(1000)' --password hunter2 &"
KEEPS_TTY = "sh -c 'exec 9</dev/tty; exec sleep 1000' &"
THERE = "until pgrep -fx 'sleep 1000' && pgrep -fx 'sleep 1001'; do :; done >/dev/null"


def survey_of(home: Home, session: Session, tier: str = "auto") -> list[SurveyedProcess]:
    name = new_name(session)
    session.checkpoint(name, tier=tier)  # type: ignore[arg-type]  # as the test names it
    found = Client(home.path).history.show(name).processes
    assert found is not None
    return found


def seen_file(home: Home, name: str) -> Path:
    capture = home.must("show", name, "--json").json()["capture"]
    return home.path / "hot" / capture / "seen.json"


def test_of_a_live_capture_all_processes_are_live(home: Home) -> None:
    with started(home, "root") as session:
        session.exec(f"{SECRET} cp $(command -v sleep) /usr/local/bin/nano; nano 1000 &")
        session.exec("until pgrep -x nano && pgrep -x python3; do :; done")
        found = {one.profile: one for one in survey_of(home, session) if one.profile != "shell"}
        assert {name: one.tier for name, one in found.items()} == {"python": "live", "nano": "live"}
        assert found["python"].command.endswith("--password ***")
        assert found["nano"].why.startswith("in a copy it asks before it saves")
        assert {one.pid for one in found.values()} <= {one.pid for one in session.survey()}
        name = new_name(session)
        session.checkpoint(name)
        said = home.must("show", name).stdout
        assert "PID  TIER  PROFILE  COMMAND" in said
        assert f"{found['nano'].pid}  live  nano     nano 1000" in said
        assert "hunter2" not in said + seen_file(home, name).read_text()
        inside = session.exec(f"waypoint show {name}").output.decode()
        assert f"{found['nano'].pid}  live     nano 1000  in a copy it asks" in inside


def test_of_one_without_processes_each_has_its_tier_and_why(home: Home) -> None:
    with started(home, "root") as session:
        session.exec(f"{KEEPS_TTY} sleep 1001 & (while :; do sleep 1; done) & {THERE}")
        found = survey_of(home, session, "respawn")
        by_command = {one.command: one for one in found}
        why = by_command["sleep 1000"].why
        assert (by_command["sleep 1000"].tier, why) == ("respawn", "it keeps /dev/tty open (fd 9)")
        assert "use bash or zsh" in by_command["sleep 1000"].remedy
        assert (by_command["sleep 1001"].tier, by_command["sleep 1001"].why) == ("respawn", "")
        of_most = {one.command: one.tier for one in survey_of(home, session)}
        assert (of_most["sleep 1000"], of_most["sleep 1001"]) == ("respawn", "live")
        lost = [one for one in found if one.tier == "files"]
        assert {one.command.partition(" ")[0] for one in lost} <= {"/bin/bash", "sleep"}
        assert {one.why for one in lost} == {"it is a part of the shell itself, a subshell"}


def test_of_files_alone_nothing_is_told(home: Home) -> None:
    with started(home, "root") as session:
        assert survey_of(home, session, "files") == []


def test_what_an_earlier_version_has_not_noted_is_missing_and_what_is_damaged_is_said(home: Home) -> None:
    with started(home, "root") as session:
        name = new_name(session)
        session.checkpoint(name)
        path = seen_file(home, name)
        path.write_bytes(path.read_bytes()[:10])
        refused = home.cli("show", name)
        assert (refused.code, "what was noted of its processes" in refused.stderr) == (10, True)
        path.unlink()
        assert home.must("show", name, "--json").json()["processes"] == []
        session.restore(name)


def test_a_process_in_a_pid_namespace_of_its_own_is_told_by_the_number_that_the_session_sees(home: Home) -> None:
    with started(home, "root", allow=["userns"]) as session:
        session.exec("unshare -Urpf sleep 1000 & until pgrep -x sleep; do :; done")
        pids = {one.pid for one in session.survey() if one.command == "sleep 1000"}
        assert pids == {int(session.exec("pgrep -x sleep").output)}
