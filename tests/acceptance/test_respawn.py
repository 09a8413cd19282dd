"""The tier `respawn`: what ran is started again, in its order, where it cannot be kept; what is lost is told."""

import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.people import Person
from tests.acceptance.seat import Seat
from tests.acceptance.sessions import branch_of, inside, session
from tests.homes import Home
from tests.ports import free_port
from tests.waiting import until_runs, wait_until

pytestmark = [pytest.mark.privileged]

SERVER = "API_TOKEN=hunter2 python3 -m http.server 8471 --bind 127.0.0.1 >>/tmp/w/log 2>&1 &"
ASK = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8471/page\").read().decode())'"

KEPT = ["respawn", pytest.param("live", marks=pytest.mark.requires("criu"))]
"""The tiers of captures whose programs can be started again."""


branch = pytest.fixture(params=["person", "zsh_person"])(branch_of)


def serve(home: Home, branch: str) -> None:
    """Start a server as a job, and wait until it answers."""
    inside(home, branch, f"mkdir -p /tmp/w; cd /tmp/w; echo content >page; {SERVER}")
    wait_until(lambda: home.cli("exec", "-b", branch, "--", ASK).code == 0, "the server answers")


@pytest.mark.parametrize("tier", KEPT)
def test_servers_and_jobs_run_again_in_every_copy(home: Home, branch: str, tier: str) -> None:
    serve(home, branch)
    inside(home, branch, "sleep 1000 | cat >'out put' & cd /usr; (while sleep 1; do :; done) & (setsid sleep 1001 &)")
    started = f"{until_runs('sleep 1000', 'cat', 'sleep 1001')}; until [ -s /tmp/w/copy ]; do :; done"
    inside(home, branch, f"tail -n 1 -f /tmp/w/page >/tmp/w/copy & {started}; (exit 3) || :")
    made = home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", tier)
    assert ("degraded: cannot be started again: " in made.stderr) == (tier == "respawn")
    forked = home.must("fork", f"{branch}-cp", f"{branch}-f", "--tier", "respawn", "--json").json()[0]
    try:
        assert [line.partition(" ")[0] for line in forked["respawned"]] == ["python3", "sleep", "sleep", "tail"]
        assert forked["lost"][0].endswith("it is a part of the shell itself, a subshell")
        assert len(forked["lost"]) == 1
        assert inside(home, f"{branch}-f", ASK) == "content\n\n"
        started = f"{until_runs('sleep 1001')}; until [ $(wc -l </tmp/w/copy) -ge 2 ]; do :; done"
        jobs = "jobs | grep -c 'http.server\\|sleep 1000\\|tail'"
        assert inside(home, f"{branch}-f", f"{started}; pwd; cat /tmp/w/copy; {jobs}") == "/usr\ncontent\ncontent\n3\n"
        environment = "tr '\\0' '\\n' </proc/$(pgrep -f http.server)/environ | grep 'API_TOKEN\\|WAYPOINT_BRANCH'"
        assert inside(home, f"{branch}-f", environment).split() == ["API_TOKEN=hunter2", f"WAYPOINT_BRANCH={branch}-f"]
        parent = "ps -o ppid= -p $(pgrep -fx 'sleep 1001')"
        wait_until(lambda: inside(home, f"{branch}-f", parent).strip() == "1", "it is nobody's child")
    finally:
        home.must("stop", f"{branch}-f", "--discard")


def test_secrets_are_in_nothing_that_is_shown(home: Home, branch: str) -> None:
    serve(home, branch)
    secret = "python3 -c {}import time; time.sleep(1000){} --password hunter2 https://me:hunter2@host/"
    inside(home, branch, f"{secret.format(*2 * chr(39))} & {until_runs(secret.format('', ''))}")
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


@pytest.mark.parametrize("tier", KEPT)
def test_a_program_in_the_foreground_is_put_on_the_line(
    home: Home, person: Person, seat: Callable[..., Seat], tier: str
) -> None:
    with session(home, person.name) as branch:
        inside(home, branch, "cd /usr; true")
        taken = seat()
        taken.type(f"waypoint attach {branch}\r".encode()).prompt()
        taken.type(b"sleep 777 'a b'; echo ended\r").see(b"ended\r\n")
        taken.type(b"sleep 777\r").see(b"sleep 777\r\n")
        home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", tier)
        done = home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes", "--tier", "respawn")
        assert "on the shell's line, for Enter to run: sleep 777" in done.stderr
        taken.see(b"Enter runs it again")
        assert inside(home, branch, "pwd; pgrep -c -f 'sleep 777' || :") == "/usr\n0\n"
        taken.type(b"\r")
        wait_until(lambda: home.cli("run", "-b", branch, "--", "pgrep", "-f", "sleep 777").code == 0, "it runs again")


@contextlib.contextmanager
def _serving(home: Home, person: Person) -> Iterator[tuple[str, int]]:
    """A session on the machine's network with a server, which was captured to be started again: branch and port."""
    port = free_port()
    with session(home, person.name, "--net", "host") as branch:
        inside(home, branch, f"cd /tmp; python3 -m http.server -b 127.0.0.1 {port} 2>/dev/null &")
        wait_until(lambda: _answers(port), "the server answers")
        home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
        yield branch, port


def test_a_server_whose_port_the_original_has_is_not_said_to_run_in_a_copy(home: Home, person: Person) -> None:
    """Of the machine's network, where somebody listens on it."""
    with _serving(home, person) as (branch, port):
        done = home.must("fork", f"{branch}-cp", f"{branch}-1")
        home.must("stop", f"{branch}-1", "--discard")
        assert f"lost: python3 -m http.server -b 127.0.0.1 {port}: it has ended at once\n" in done.stderr


def test_in_place_of_the_session_that_has_its_port_it_runs_again(home: Home, person: Person) -> None:
    with _serving(home, person) as (branch, port):
        done = home.must("restore", f"{branch}-cp", "-b", branch)
        assert f"started again: python3 -m http.server -b 127.0.0.1 {port}\n" in done.stderr
        assert _answers(port)


def _answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def test_of_a_line_of_which_no_part_makes_sense_alone_each_part_is_told_as_lost(
    home: Home, person: Person, seat: Callable[..., Seat]
) -> None:
    """Its standard error alone is piped."""
    with session(home, person.name) as branch:
        taken = seat()
        taken.type(f"waypoint attach {branch}\r".encode()).prompt()
        taken.type(b"sleep 1006 2>&1 >/dev/null | cat\r")
        home.must("run", "-b", branch, "--", "sh", "-c", until_runs("sleep 1006", "cat"))
        home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
        done = home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes")
        for part in ("sleep 1006", "cat"):
            assert f"lost: {part}: it was in the foreground, and cannot be typed again\n" in done.stderr
        assert "on the shell's line" not in done.stderr


def test_what_cannot_be_started_again_is_lost_and_stops_nothing(home: Home, branch: str) -> None:
    inside(home, branch, "cd /tmp; cp /bin/sleep own; ./own 1000 & sleep 1002 &")
    inside(home, branch, f"{until_runs('./own 1000', 'sleep 1002')}; rm own")
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
    done = home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes")
    assert "started again: sleep 1002\n" in done.stderr
    assert "lost: ./own 1000: it has ended at once\n" in done.stderr


@pytest.mark.parametrize("tier", KEPT)
def test_what_is_told_of_a_process_by_its_pid_is_not_started_again(home: Home, branch: str, tier: str) -> None:
    started = f"{until_runs('sleep 1005')}; until pgrep -x tail; do :; done"
    inside(home, branch, f"sleep 1005 & tail --pid=$! -f /dev/null & {started}")
    pid = inside(home, branch, "pgrep -x sleep").strip()
    made = home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", tier)
    said = f"tail --pid={pid} -f /dev/null: it is told of a process by its number, {pid}, which will be another's"
    assert (said in made.stderr) == (tier == "respawn")
    done = home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes", "--tier", "respawn")
    assert f"lost: {said}\n" in done.stderr
    assert "started again: sleep 1005\n" in done.stderr


def test_what_ends_at_once_is_not_said_to_run_again(home: Home, branch: str) -> None:
    inside(home, branch, "cd /tmp; printf '%s\\n' '[ -e gone ] || exit' 'sleep 1000' >work; touch gone")
    inside(home, branch, f"bash work & sleep 1006 & {until_runs('sleep 1000', 'sleep 1006')}; rm gone")
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
    done = home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes")
    assert "started again: sleep 1006\n" in done.stderr
    assert "lost: bash work: it has ended at once\n" in done.stderr


def test_it_is_parked_and_goes_on(home: Home, branch: str) -> None:
    serve(home, branch)
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--park", "--tier", "respawn")
    begun = home.must("shell", branch, "-d")
    assert "started again: python3 -m http.server" in begun.stderr
    assert inside(home, branch, ASK) == "content\n\n"


def test_another_user_is_not_given_what_ran(home: Home, branch: str) -> None:
    inside(home, branch, f"sleep 1004 & {until_runs('sleep 1004')}")
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
    begun = home.must("shell", f"{branch}-root", "-d", "--from", f"{branch}-cp", "--user", "root")
    try:
        assert "lost: sleep 1004: it was " in begun.stderr
        assert "and the session is root's" in begun.stderr
        assert inside(home, f"{branch}-root", "pgrep -c -f 'sleep 1004' || :") == "0\n"
    finally:
        home.must("stop", f"{branch}-root", "--discard")
