"""The same commands by root and by an ordinary user of a machine where nothing was set up.

Without root there is no CRIU: the shell's state and the files come back exactly, programs are started again.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.alone import Caller
from tests.homes import open_home
from tests.waiting import until_runs, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout", "without-root")]


@pytest.fixture(scope="module")
def root() -> Iterator[Caller]:
    with open_home("beside") as home:
        yield Caller(home, None, "live")


@pytest.fixture(params=["root", pytest.param("user", id="an ordinary user")])
def caller(request: pytest.FixtureRequest) -> Iterator[Caller]:
    """Each in turn, with a new session on `main`, in which a file and the shell have a state."""
    found: Caller = request.getfixturevalue(request.param)
    found.must("shell", "main", "-d", "--cwd", "/tmp")
    found.exec("cd /usr; export WORD=one; list=(a 'b c'); greet() { echo hello $1; }; echo one >/var/tmp/state")
    yield found
    found.must("stop", "--all", "--discard")
    branches = [row["name"] for row in json.loads(found.must("branch", "list", "--json"))]
    if branches:
        found.must("branch", "delete", *branches)
    found.try_to("rm", "first")


STATE = 'pwd; echo $WORD "${list[1]}"; greet you; cat /var/tmp/state'
FIRST = "/usr\none b c\nhello you\none\n"
CHANGE = "cd /etc; WORD=two; list=(x 'y z'); greet() { echo bye $1; }; echo two >/var/tmp/state"
SECOND = "/etc\ntwo y z\nbye you\ntwo\n"


def test_a_session_goes_on_from_command_to_command(caller: Caller) -> None:
    assert caller.exec(STATE) == FIRST
    assert caller.try_to("exec", "--", "(exit 7)").returncode == 7
    assert caller.must("run", "--", "sh", "-c", "id -un; echo ok >/tmp/by-run") == caller.exec("id -un")
    assert caller.exec("cat /tmp/by-run") == "ok\n"
    (row,) = json.loads(caller.must("ps", "--json"))
    assert (row["branch"], row["state"]) == ("main", "live")
    assert row["processes"] == 2
    assert "cat /tmp/by-run" in caller.must("logs") or "ok" in caller.must("logs")


def test_a_restore_brings_files_and_shell_back_and_undo_what_was_there(caller: Caller) -> None:
    caller.must("checkpoint", "first")
    caller.exec(CHANGE)
    assert caller.exec(STATE) == SECOND
    caller.must("restore", "first")
    assert caller.exec(STATE) == FIRST
    caller.must("undo")
    assert caller.exec(STATE) == SECOND


def test_what_is_in_the_store_alone_comes_back(caller: Caller) -> None:
    caller.exec("echo first >/var/tmp/untouched; rm /var/tmp/state")
    caller.exec("mkdir /var/tmp/made; ln -s nowhere /var/tmp/made/link; chmod 700 /var/tmp/made")
    kept = json.loads(caller.must("checkpoint", "first", "--wait", "--json"))
    assert (kept["durable"], kept["tier"]) == (True, caller.tier)
    assert json.loads(caller.must("verify", "--read-data", "--json"))["problems"] == []
    caller.exec(f"{CHANGE}; rm -r /var/tmp/made")
    assert json.loads(caller.must("evict", "first", "--json")) == {"evicted": [kept["capture"]], "kept": []}
    changed_is_read_alone(caller, kept["capture"])
    caller.must("restore", "first")
    assert caller.exec("pwd; echo $WORD; ls /var/tmp/state; readlink /var/tmp/made/link; stat -c %a /var/tmp/made") == (
        "/usr\none\nls: cannot access '/var/tmp/state': No such file or directory\nnowhere\n700\n"
    )


def changed_is_read_alone(caller: Caller, parent: str) -> None:
    """A capture of which the parent is evicted, or of which the file system cannot tell the changes, is put by the
    stamps of its files: a content that was changed behind these does not come into the store.
    """
    second = json.loads(caller.must("checkpoint", "second", "--json"))["capture"]
    pool = caller.pool()
    assert (pool / ".stamps" / parent).stat().st_size > 100
    if caller.tier == "respawn":  # a pool of plain folders
        (path,) = (pool / second).rglob("untouched")
        path.write_text("other")
    caller.must("checkpoint", "third", "--wait")  # after all that it goes on from
    caller.must("evict", "second")
    assert [caller.must("cat", f"second:/var/tmp/{name}") for name in ("untouched", "state")] == ["first\n", "two\n"]
    caller.must("rm", "second", "third")


def test_only_the_files_come_back_if_that_is_asked_for(caller: Caller) -> None:
    caller.must("checkpoint", "first")
    caller.exec(CHANGE)
    hidden = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0); print(flush=True); time.sleep(1000)"
    caller.exec(f"coproc HIDDEN {{ exec python3 -c '{hidden}'; }}; read <&${{HIDDEN[0]}}; exec 7</var/tmp/state")
    told = caller.try_to("restore", "first", "--only", "files").stderr  # one of its programs shows its files to nobody
    assert "go on with the old ones: /var/tmp/state (bash);" in told
    assert caller.exec("pwd; echo $WORD; cat /var/tmp/state") == "/etc\ntwo\none\n"
    caller.must("undo")
    assert caller.exec("pwd; echo $WORD; cat /var/tmp/state") == "/etc\ntwo\ntwo\n"


def test_forks_go_their_own_ways(caller: Caller) -> None:
    caller.must("checkpoint", "first")
    assert caller.must("fork", "first", "a", "b") == "a\nb\n"
    caller.exec("WORD=in-a; echo in-a >/var/tmp/state", "a")
    assert [caller.exec("echo $WORD; cat /var/tmp/state", one) for one in ("main", "a", "b")] == [
        "one\none\n",
        "in-a\nin-a\n",
        "one\none\n",
    ]


def test_what_ran_in_the_background_runs_again(caller: Caller) -> None:
    caller.exec(f"sleep 4321 & {until_runs('sleep 4321')}")
    caller.must("checkpoint", "first")
    caller.exec("kill %1; wait; true")
    caller.must("restore", "first")
    wait_until(lambda: "sleep 4321" in caller.exec("ps -eo args"), "the program to run again")


def test_a_stopped_session_goes_on_from_its_files(caller: Caller) -> None:
    caller.must("stop", "main")
    assert json.loads(caller.must("ps", "--json")) == []
    caller.must("shell", "main", "-d")
    assert caller.exec("cat /var/tmp/state") == "one\n"


def test_a_parked_session_goes_on_with_its_shell(caller: Caller) -> None:
    caller.must("checkpoint", "first", "--park")
    caller.must("restore", "first")
    assert caller.exec(STATE) == FIRST


ENDS = [
    ("checkpoint", "first", "--park", "--force"),
    ("stop", "--checkpoint", "second"),
    ("restore", "first"),
    ("undo",),
]


@pytest.mark.parametrize("verb", ENDS, ids=[verb[0] for verb in ENDS])
def test_whoever_ends_programs_is_told_that_they_are_not_kept(caller: Caller, verb: tuple[str, ...]) -> None:
    caller.must("checkpoint", "first")
    caller.must("restore", "first")
    caller.exec(f"sleep 1000 & {until_runs('sleep 1000')}")
    looked_at = caller.try_to("doctor", "main", "--json")
    assert {one["tier"] for one in json.loads(looked_at.stdout)} == {caller.tier}
    assert looked_at.returncode == (3 if caller.tier == "respawn" else 0)
    done = caller.try_to(*verb, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    degraded = (told[0] if verb[0] == "stop" else told)["degraded"]
    start = "without its processes: " if verb[0] in ("checkpoint", "stop") else "what was replaced is kept without its "
    assert any(start in line for line in degraded) == (caller.tier == "respawn"), degraded
    caller.try_to("rm", "second")


def test_history_tells_what_was_kept(caller: Caller) -> None:
    caller.must("checkpoint", "first", "-m", "why")
    assert "first" in caller.must("log")
    shown = json.loads(caller.must("show", "first", "--json"))
    assert (shown["tier"], shown["names"][0]) == (caller.tier, "first")
    caller.must("gc")
    caller.must("du")
    assert "checkpoint" in caller.must("op", "log")


def test_nothing_of_the_machine_changes(caller: Caller) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    caller.exec("echo new >/etc/waypoint-new; rm -f /etc/hostname; mkdir /usr/waypoint-new; touch /tmp/waypoint-new")
    assert caller.exec("cat /etc/waypoint-new; echo /usr/waypoint-n* /tmp/waypoint-n*") == (
        "new\n/usr/waypoint-new /tmp/waypoint-new\n"
    )
    assert not any(Path(one, "waypoint-new").exists() for one in ("/etc", "/tmp", "/usr"))
    assert Path("/etc/hostname").exists()
    assert Path("/proc/self/mountinfo").read_text() == before


def test_a_session_outlives_a_daemon_that_is_killed(caller: Caller) -> None:
    status = json.loads(caller.must("daemon", "status", "--json"))
    os.kill(status["pid"], signal.SIGKILL)
    assert caller.exec(STATE) == FIRST
    assert caller.must("run", "--", "echo", "entered") == "entered\n"
