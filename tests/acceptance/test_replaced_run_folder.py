"""A session's root replaces /run/waypoint or Waypoint's files in it.

Every command then works or fails in time with a reason, and copies of such a session work.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import session
from tests.homes import Completed, Home
from tests.session.hostile import as_command, replaced
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

NAMES = "go bell branch nonce req last.0 last.1 hist.0 hist.1 names state exit exit.new r.1.0 w.1.0 c.1.0 a.1.0"
KINDS = {
    "fifo": "mkfifo $f",
    "folder": "mkdir $f; touch $f/within",
    "endless": "ln -s /dev/zero $f",
    "loop": "ln -s $f $f",
    "huge": "truncate -s 1T $f",
    "socket": "python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' $f",
}
REPLACE = "cd /run/waypoint; for f in {names}; do rm -rf $f; {make}; done"
LIMIT_S = 60.0  # a command takes less than a second, unless it hangs
PLACES = {
    "link": "rm -rf /run/waypoint; ln -s /etc /run/waypoint",
    "file": "rm -rf /run/waypoint; touch /run/waypoint",
    "fifo": "rm -rf /run/waypoint; mkfifo /run/waypoint",
    "loop": "rm -rf /run/waypoint; ln -s waypoint /run/waypoint",
    "moved": "mv /run/waypoint /run/elsewhere; mkdir /run/waypoint",
    "gone": "rm -rf /run/waypoint",
}


@pytest.fixture
def hostile(home: Home) -> Iterator[str]:
    with session(home, "root") as name:
        yield name


def quick(home: Home, *words: str, stdin: bytes | None = None) -> Completed:
    return home.must(*words, timeout_s=LIMIT_S, stdin=stdin)


def check_session(home: Home, branch: str) -> None:
    assert quick(home, "exec", "-b", branch, "--timeout", "60", "--", "echo $x").stdout == "kept\n"
    assert home.cli("run", "-b", branch, "--", "sh", "-c", "exit 3", timeout_s=LIMIT_S).code == 3


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "fifo" else pytest.mark.soak(part="floods")) for kind in KINDS]
)
def test_no_verb_hangs_on_replaced_files_of_the_run_folder(home: Home, hostile: str, kind: str) -> None:
    home.must("exec", "-b", hostile, "--", "x=kept")
    home.must("run", "-b", hostile, "--", "sh", "-c", REPLACE.format(names=NAMES, make=KINDS[kind]))
    check_session(home, hostile)
    assert quick(home, "exec", "-b", hostile, "-i", "--timeout", "60", "--", "cat", stdin=b"in").stdout == "in"
    assert "kept" in quick(home, "logs", hostile).stdout
    assert quick(home, "checkpoint", "live", "-b", hostile, "--json").json()["tier"] == "live"
    quick(home, "checkpoint", "files", "-b", hostile, "--tier", "files")
    quick(home, "fork", "live", "copy")
    check_session(home, "copy")
    quick(home, "restore", "live", "-b", hostile)
    check_session(home, hostile)
    quick(home, "stop", "--files", hostile, "copy")
    quick(home, "shell", hostile, "-d", "--user", "root")
    assert quick(home, "exec", "-b", hostile, "--timeout", "60", "--", "echo hi").stdout == "hi\n"
    home.must("rm", "live", "files")
    home.must("branch", "delete", "copy")


def test_a_removed_run_folder_is_made_again_by_the_next_exec(home: Home, hostile: str) -> None:
    home.must("exec", "-b", hostile, "--", "x=kept; rm -rf /run/waypoint")
    check_session(home, hostile)
    assert quick(home, "exec", "-b", hostile, "-i", "--timeout", "60", "--", "cat", stdin=b"in").stdout == "in"
    assert home.must("run", "-b", hostile, "--", "waypoint", "status").code == 0
    ended = home.cli("exec", "-b", hostile, "--timeout", "0.2", "--json", "--", "trap '' INT; while :; do :; done")
    assert (ended.code, [one["code"] for one in ended.json()["degraded"]]) == (124, ["shell-renewed"])
    check_session(home, hostile)


@pytest.mark.soak(part="floods")
@pytest.mark.parametrize("place", PLACES)
def test_without_its_run_folder_run_works_and_copies_are_whole(home: Home, hostile: str, place: str) -> None:
    home.must("exec", "-b", hostile, "--", "x=kept")
    home.must("run", "-b", hostile, "--", "sh", "-c", "sleep 1000 & exit")
    lost = home.cli("run", "-b", hostile, "--", "sh", "-c", PLACES[place], timeout_s=LIMIT_S)
    if place in ("file", "fifo", "loop", "gone"):  # the exit status is passed in /dev/shm instead
        assert (lost.code, lost.stderr) == (0, "")
    else:
        assert lost.code == 125
        assert "waypoint: cannot report the exit status of 'sh': the session has replaced" in lost.stderr
        assert "\n  next: run the command again, if it does no harm to run it twice\n" in lost.stderr
    assert home.cli("run", "-b", hostile, "--", "sh", "-c", "exit 3", timeout_s=LIMIT_S).code == 3
    failed = home.cli("exec", "-b", hostile, "--timeout", "2", "--", "true", timeout_s=LIMIT_S)
    if place == "gone":
        assert failed.code == 0  # the folder is made again
    else:
        assert failed.code == 125
        assert "\n  next: " in failed.stderr
    assert quick(home, "checkpoint", "live", "-b", hostile, "--json").json()["tier"] == "live"
    quick(home, "fork", "live", "copy")
    check_session(home, "copy")
    assert quick(home, "run", "-b", "copy", "--", "pgrep", "-c", "sleep").stdout == "1\n"
    quick(home, "restore", "live", "-b", hostile)
    check_session(home, hostile)
    home.must("stop", "--files", hostile, "copy")
    home.must("rm", "live")
    home.must("branch", "delete", "copy")


def test_a_client_of_a_hanging_daemon_can_be_interrupted(home: Home, hostile: str) -> None:
    daemon = int(home.must("daemon", "status", "--json").json()["pid"])
    with home.background("exec", "-b", hostile, "--", "echo begun; sleep 1000") as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"begun\n"
        os.kill(daemon, signal.SIGSTOP)
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                _send(command, number)
            assert command.wait(PATIENCE_S) == -signal.SIGINT
        finally:
            os.kill(daemon, signal.SIGCONT)


def _send(command: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    command.send_signal(number)

    def is_taken() -> bool:
        if command.poll() is not None:
            return True
        lines = Path(f"/proc/{command.pid}/status").read_text().splitlines()
        return not any(int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd")))

    wait_until(is_taken, "the signal is handled")


def test_a_session_with_a_replaced_proc_is_refused_and_continues_from_its_files(home: Home) -> None:
    with session(home, "root", "--allow", "userns") as hostile:
        home.must("exec", "-b", hostile, "--", as_command(replaced("proc", by="os.mkdir(place)")))
        refused = home.cli("checkpoint", "live", "-b", hostile, "--tier", "live")
        assert refused.code == 5
        assert "something else is mounted at /proc than at the start of the session" in refused.stderr
        assert "\n  next: continue from its files: waypoint stop, then waypoint shell\n" in refused.stderr
        home.must("stop", "--files", hostile)
        home.must("shell", hostile, "-d")
        assert home.must("checkpoint", "live", "-b", hostile, "--tier", "live", "--json").json()["tier"] == "live"
        home.must("rm", "live")
