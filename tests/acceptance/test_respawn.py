"""The tier `respawn`: programs are started again in their order; programs that cannot be are reported as lost."""

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.people import Person
from tests.acceptance.seat import Seat
from tests.acceptance.sessions import inside, session
from tests.answers import unusual
from tests.homes import Home
from tests.waiting import wait_until

pytestmark = [pytest.mark.privileged]

SERVER = "API_TOKEN=hunter2 python3 -m http.server 8471 --bind 127.0.0.1 >>/tmp/w/log 2>&1 &"
ASK = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8471/page\").read().decode())'"


@pytest.fixture(params=["person", pytest.param("zsh_person", marks=pytest.mark.soak(part="matrix"))])
def branch(home: Home, request: pytest.FixtureRequest) -> Iterator[str]:
    with session(home, request.getfixturevalue(request.param).name) as name:
        yield name


def serve(home: Home, branch: str) -> None:
    """Start a server as a job of the shell and wait until it answers."""
    inside(home, branch, f"mkdir -p /tmp/w; cd /tmp/w; echo content >page; {SERVER}")
    wait_until(lambda: home.cli("exec", "-b", branch, "--", ASK).code == 0, "the server answers")


def test_servers_and_jobs_run_again_in_every_copy(home: Home, branch: str) -> None:
    serve(home, branch)
    inside(home, branch, "sleep 1000 | cat >'out put' & cd /usr; (while sleep 1; do :; done) & (setsid sleep 1001 &)")
    inside(home, branch, "tail -n 1 -f /tmp/w/page >/tmp/w/copy & (exit 3) || :")
    made = home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
    assert "degraded: cannot be started again: " in made.stderr
    forked = home.must("fork", f"{branch}-cp", f"{branch}-f", "--json").json()[0]
    try:
        assert [line.partition(" ")[0] for line in forked["respawned"]] == ["python3", "sleep", "sleep", "tail"]
        assert forked["lost"][0]["detail"] == "it is a subshell of the session's shell"
        assert len(forked["lost"]) == 1
        assert inside(home, f"{branch}-f", ASK) == "content\n\n"
        assert inside(
            home, f"{branch}-f", "pwd; cat /tmp/w/copy; jobs | grep -c 'http.server\\|sleep 1000\\|tail'"
        ) == ("/usr\ncontent\ncontent\n3\n")
        environment = "tr '\\0' '\\n' </proc/$(pgrep -f http.server)/environ | grep 'API_TOKEN\\|WAYPOINT_BRANCH'"
        assert inside(home, f"{branch}-f", environment).split() == ["API_TOKEN=hunter2", f"WAYPOINT_BRANCH={branch}-f"]
        assert inside(home, f"{branch}-f", "ps -o ppid= -p $(pgrep -f 'sleep 1001')").strip() == "1"
    finally:
        home.must("stop", f"{branch}-f", "--discard")


def test_a_live_capture_is_restored_at_each_tier(home: Home, branch: str) -> None:
    serve(home, branch)
    # In a copy, the other end of its standard error would be missing.
    quiet = ("sh", "-c", "exec python3 -m http.server 8472 2>/dev/null")
    run = ("run", "-b", branch, "--cwd", "/tmp/w", "--env", "API_TOKEN=run", "--", *quiet)
    ask_run = ASK.replace("8471", "8472")
    with home.background(*run) as running:
        wait_until(lambda: home.cli("exec", "-b", branch, "--", ask_run).code == 0, "the second server answers")
        inside(home, branch, "kept=yes")
        asked = int(inside(home, branch, "grep -c GET log"))
        made = home.must("checkpoint", f"{branch}-cp", "-b", branch, "--json").json()
        running.kill()
    assert (made["tier"], unusual(made["degraded"])) == ("live", [])
    for tier, number in (("auto", 2), ("live", 2), ("respawn", 2), ("files", 0)):
        fork = f"{branch}-{tier}"
        (told,) = home.must("fork", f"{branch}-cp", fork, "--tier", tier, "--json").json()
        servers = ["python3 -m http.server 8471 --bind 127.0.0.1", "python3 -m http.server 8472"]
        again = servers if tier == "respawn" else None
        assert (unusual(told["degraded"]), told["respawned"]) == ([], again), tier
        try:
            assert inside(home, fork, "echo $kept; pgrep -c python3 || :") == f"yes\n{number}\n", tier
            if number:
                assert inside(home, fork, f"{ASK}; {ask_run}") == "content\n\n" * 2, tier
                assert int(inside(home, fork, "grep -c GET log")) == asked + 1, tier
                environment = (
                    "for pid in $(pgrep python3); do tr '\\0' '\\n' </proc/$pid/environ | grep API_TOKEN; done"
                )
                assert inside(home, fork, environment) == "API_TOKEN=hunter2\nAPI_TOKEN=run\n", tier
        finally:
            home.must("stop", fork, "--discard")
    home.must("checkpoint", f"{branch}-less", "-b", branch, "--tier", "files")
    for tier, why in (("live", "the capture has no processes"), ("respawn", "the capture has no list of its programs")):
        refused = home.cli("restore", f"{branch}-less", "-b", branch, "--tier", tier)
        assert (refused.code, why in refused.stderr) == (5, True), refused
    assert home.cli("restore", f"{branch}-cp", "-b", branch, "--only", "files", "--tier", "files").code == 2
    printed = inside(home, branch, f"waypoint fork {branch}-cp {branch}-i --tier respawn")
    home.must("stop", f"{branch}-i", "--discard")
    assert "\nstarted again: python3 -m http.server" in printed


def test_secrets_are_never_shown(home: Home, branch: str) -> None:
    serve(home, branch)
    inside(home, branch, "python3 -c 'import time; time.sleep(1000)' --password hunter2 https://me:hunter2@host/ &")
    made = home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn", "--json")
    shown = home.must("show", f"{branch}-cp")
    assert "--password *** https://me:***@host/" in shown.stdout
    asked = home.must("show", f"{branch}-cp", "--json")
    restored = home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes")
    assert "started again: python3 -m http.server" in restored.stderr
    for done in (made, shown, asked, restored):
        assert "hunter2" not in done.stdout + done.stderr
    manifest = home.path / "hot" / made.json()["capture"] / "programs.json"
    assert manifest.stat().st_mode & 0o777 == 0o600
    assert inside(home, branch, ASK) == "content\n\n"


def test_a_program_in_the_foreground_is_typed_at_the_prompt(
    home: Home, person: Person, seat: Callable[..., Seat]
) -> None:
    with session(home, person.name) as branch:
        inside(home, branch, "cd /usr; true")
        taken = seat()
        taken.type(f"waypoint attach {branch}\r".encode()).prompt()
        taken.type(b"sleep 777 'a b'; echo ended\r").see(b"ended\r\n")
        taken.type(b"sleep 777\r").see(b"sleep 777\r\n")
        home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
        done = home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes")
        assert "typed at the prompt, press Enter to run it: sleep 777" in done.stderr
        taken.see(b"Enter runs it again")
        assert inside(home, branch, "pwd; pgrep -c -f 'sleep 777' || :") == "/usr\n0\n"
        taken.type(b"\r")
        wait_until(
            lambda: home.cli("run", "-b", branch, "--", "pgrep", "-f", "sleep 777").code == 0, "the program runs again"
        )


def test_a_program_that_only_shows_something_runs_again_in_the_foreground(
    home: Home, person: Person, seat: Callable[..., Seat]
) -> None:
    with session(home, person.name) as branch:
        started = "until read -r name </proc/$!/comm && [ $name = sleep ]; do :; done"
        inside(home, branch, f"echo shown >/tmp/shown; sleep 776 & {started}; kill -STOP $!")
        taken = seat()
        taken.type(f"waypoint attach {branch}\r".encode()).prompt()
        taken.type(b"tail -f /tmp/shown\r").see(b"\rshown\r\n")
        home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
        done = home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes")
        assert "started again: sleep 776\nstarted again: tail -f /tmp/shown\n" in done.stderr
        taken.see(b"tail -f /tmp/shown: runs again")
        taken.see(b"\rshown\r\n")
        taken.type(b"\x03").prompt()
        assert inside(home, branch, "jobs | grep -c 'sleep 776'; pgrep -x tail || :") == "1\n"


def test_a_program_that_cannot_be_started_is_reported_as_lost(home: Home, branch: str) -> None:
    inside(home, branch, "cd /tmp; cp /bin/sleep own; ./own 1000 & sleep 1002 &")
    inside(home, branch, "until pgrep -x own; do :; done; rm own")
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
    done = home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes")
    assert "started again: sleep 1002\n" in done.stderr
    assert "lost: ./own 1000: it ended immediately\n" in done.stderr


def test_a_session_stopped_by_checkpoint_park_starts_its_programs_again(home: Home, branch: str) -> None:
    serve(home, branch)
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--park", "--tier", "respawn")
    begun = home.must("shell", branch, "-d")
    assert "started again: python3 -m http.server" in begun.stderr
    assert inside(home, branch, ASK) == "content\n\n"


def test_programs_are_not_started_for_another_user(home: Home, branch: str) -> None:
    inside(home, branch, "sleep 1004 &")
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
    begun = home.must("shell", f"{branch}-root", "-d", "--from", f"{branch}-cp", "--user", "root")
    try:
        assert "lost: sleep 1004: it belonged to " in begun.stderr
        assert "and the session belongs to root" in begun.stderr
        assert inside(home, f"{branch}-root", "pgrep -c -f 'sleep 1004' || :") == "0\n"
    finally:
        home.must("stop", f"{branch}-root", "--discard")
