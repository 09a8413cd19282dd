"""`waypoint exec`: input, options, JSON, signals, terminals. See also tests/acceptance/test_exec_cli.py."""

import base64
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.conftest import Spawn, daemon_pid, exit_status, is_cooked
from tests.homes import Home
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.privileged

# One process, which is in the terminal's foreground when it prints.
SLEEPER = "sh -c 'echo begun; exec sleep 60'"


@contextmanager
def started(home: Home, *args: str, **options: int) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a command of Waypoint in the background; kill it at the end."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen(home.argv(*args), env=home.env, **streams) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def read_until(process: "subprocess.Popen[bytes]", words: bytes) -> bytes:
    assert process.stdout is not None
    found = b""
    while words not in found:
        piece = os.read(process.stdout.fileno(), 65536)
        assert piece, f"the output ended after {found[-200:]!r}"
        found += piece
    return found


def test_text_that_is_not_utf8_is_refused(home: Home, branch: str) -> None:
    done = subprocess.run(
        [*home.argv("exec", "-b", branch, "--"), b"echo \xff"], env=home.env, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"not UTF-8" in done.stderr


def test_without_i_the_command_has_no_input(home: Home, branch: str) -> None:
    assert home.must("exec", "-b", branch, "--", "wc -c", stdin=b"some").stdout.strip() == "0"


def test_with_i_a_command_that_does_not_read_ends(home: Home, branch: str) -> None:
    assert home.must("exec", "-b", branch, "-i", "--", "head -c 3", stdin=b"abcdef" * 1_000_000).stdout == "abc"


def test_with_i_endless_input_does_not_keep_the_command_running(home: Home, branch: str) -> None:
    with started(home, "exec", "-b", branch, "-i", "--", "read x; echo got $x", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"line\n")
        process.stdin.flush()
        read_until(process, b"got line\n")
        assert process.wait(PATIENCE_S) == 0


def test_exec_works_with_closed_standard_streams(home: Home, branch: str) -> None:
    command = " ".join(["exec", *home.argv("exec", "-b", branch, "-i", "--", "'cat; echo done'")])
    done = subprocess.run(["/bin/sh", "-c", f"{command} <&-"], env=home.env, capture_output=True, check=True)
    assert done.stdout == b"done\n"
    done = subprocess.run(["/bin/sh", "-c", f"{command} <&- >&-"], env=home.env, capture_output=True, check=False)
    assert done.returncode == 125
    assert b"cannot write to stdout: Bad file descriptor" in done.stderr


def test_a_directory_and_variables_can_be_set_for_one_command(home: Home, branch: str) -> None:
    where = home.must("exec", "-b", branch, "--", "pwd").stdout
    text = 'pwd; echo "$A|$B"; mine=here; cd /'
    done = home.must("exec", "-b", branch, "--cwd", "/usr/lib", "--env", "A=1 '2'", "--env=B=$x", "--", text)
    assert done.stdout == "/usr/lib\n1 '2'|$x\n"
    assert home.must("exec", "-b", branch, "--", 'pwd; echo "${A-}${mine-}"').stdout == f"{where}\n"
    assert f"\N{RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK} {text}" in home.must("logs", branch).stdout
    for option in ("--cwd=/no/such/folder", "--env=UID=1"):  # a read-only variable of the shell
        refused = home.cli("exec", "-b", branch, option, "--json", "--", "echo never")
        outcome = refused.json()
        assert (refused.code, outcome["exit"], outcome["by"]) == (125, 125, "waypoint"), outcome
        assert "never" not in outcome["output"]
    done = home.cli("exec", "-b", branch, "--cwd=/usr", "--json", "--", "exit 125")
    assert (done.code, done.json()["by"]) == (125, "command")


def test_a_wrong_directory_or_variable_is_wrong_usage(home: Home, branch: str) -> None:
    for option in ("--env=A", "--env==1", "--env=1A=2", "--env=A B=2", "--cwd="):
        done = home.cli("exec" if option == "--env=A" else "run", "-b", branch, option, "--", "true")
        assert (done.code, done.stdout) == (2, ""), option
        assert option[:5] in done.stderr


def test_the_branch_may_come_from_the_environment(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "mine=yes")
    assert home.must("exec", "--", "echo $mine", env={"WAYPOINT_BRANCH": branch}).stdout == "yes\n"


def test_exit_ends_the_session_with_its_status(home: Home, branch: str) -> None:
    done = home.cli("exec", "-b", branch, "--", "exit 7")
    assert (done.code, done.stdout) == (7, "exit\n")  # printed by bash
    said = f"the session of {branch} has ended with its shell; to continue: waypoint shell {branch}"
    assert done.stderr == f"waypoint: {said}\n"
    assert branch not in [one["branch"] for one in home.must("ps", "--json").json()]
    home.must("shell", branch, "-d")  # the advised command


@pytest.mark.requires("criu")
def test_a_command_that_ends_the_shell_leaves_the_session_and_its_programs(home: Home, branch: str) -> None:
    home.must(
        "exec", "-b", branch, "--", "python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 & f() { echo f; }"
    )
    home.must("exec", "-b", branch, "--", "until (: 3<>/dev/tcp/127.0.0.1/8123) 2>/dev/null; do :; done")
    done = home.cli("exec", "-b", branch, "--", "export mine=1; cd /usr; cd /nowhere 2>/dev/null || exit 3")
    assert done.code == 3
    assert f"the command has ended the shell of {branch}; a new shell has replaced it" in done.stderr
    found = home.cli("exec", "-b", branch, "--json", "--", "set -e; false").json()
    assert (found["exit"], found["by"], found["ended"], found["new_shell"]) == (1, "command", False, True)
    look = "echo $mine $(f) $PWD; exec 3<>/dev/tcp/127.0.0.1/8123 && echo listens; exec 3<&-"
    assert home.must("exec", "-b", branch, "--", look).stdout == "1 f /usr\nlistens\n"
    cp = f"{branch}-after"
    home.must("checkpoint", cp, "-b", branch, "--tier", "live")
    home.must("exec", "-b", branch, "--", "mine=2; pkill -f http.server")
    home.must("restore", cp)
    assert home.must("exec", "-b", branch, "--", look).stdout == "1 f /usr\nlistens\n"
    home.must("rm", cp)


# --- json


def test_json_has_bytes_that_are_no_text_in_base64(home: Home, branch: str) -> None:
    found = home.must("exec", "-b", branch, "--json", "--", r"printf 'a\377b'").json()
    assert found["output"] == "a\N{REPLACEMENT CHARACTER}b"
    assert base64.b64decode(found["output_base64"]) == b"a\xffb"


def test_json_reports_the_end_of_the_session(home: Home, branch: str) -> None:
    found = home.cli("exec", "-b", branch, "--json", "--", "exit 5").json()
    assert (found["exit"], found["by"], found["ended"]) == (5, "command", True)


def test_exec_on_a_busy_shell_fails_with_a_next_step(home: Home, branch: str) -> None:
    busy = f"{branch}-busy"
    home.must("shell", busy, "-d", "--", "sleep", "1000")
    words = ["exec", "-b", busy, "--wait-prompt", "0.1"]
    told = home.cli(*words, "--", "true")
    done = home.cli(*words, "--json", "--", "true")
    home_first = home.cli("--home", str(home.path), *words, "--json", "--", "true")
    found, error = done.json(), done.json()["error"]
    assert (told.code, done.code, found["exit"], found["by"], found["ended"]) == (125, 125, 125, "waypoint", False)
    assert (error["on"], error["said"]) == (f"branch {busy}", found["said"])
    assert "sleep 1000 runs in the foreground" in error["said"]
    assert (
        told.stderr
        == done.stderr
        == f"waypoint: cannot {error['tried']} {error['on']}: {error['said']}\n  next: {error['next']}\n"
    )
    assert home_first.json()["error"] == error
    step, _, command = error["next"].rpartition(": ")
    assert step == "wait until its shell is idle (exec --wait-prompt S), or run a separate process"
    command = command.replace("CMD", "echo beside")
    assert home.must(*shlex.split(command)[1:]).stdout == "beside\n"
    home.must("stop", busy, "--discard")


def test_a_command_whose_session_is_replaced_reports_where_to_continue(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-cp", "-b", branch)
    words = ["exec", "-b", branch, "--json", "--", f"waypoint restore {branch}-cp"]
    done = home.cli(*words)
    assert (done.code, done.json()["exit"], done.json()["ended"]) == (125, 125, True)
    assert done.json()["error"]["said"] == "the session was replaced: a capture was restored in its place"
    step = done.json()["error"]["next"]
    assert step.startswith("to continue in the session: waypoint ")
    home.must(*shlex.split(step.rpartition(": ")[2])[1:], "-d")
    home.must("rm", f"{branch}-cp")


# --- signals, and readers that close the output


def test_ctrl_c_interrupts_the_command_and_not_the_session(home: Home, branch: str, on_terminal: Spawn) -> None:
    terminal = on_terminal("exec", "-b", branch, "--", f"{SLEEPER}; echo not this")
    terminal.expect(b"begun")
    terminal.sendintr()
    assert exit_status(terminal) == 130
    assert b"not this" not in terminal.before
    assert home.must("exec", "-b", branch, "--", "echo alive").stdout == "alive\n"


def test_the_third_ctrl_c_in_a_row_kills(home: Home, branch: str, on_terminal: Spawn) -> None:
    text = "sh -c 'trap \"echo no\" INT; echo begun; while :; do sleep 0.01; done'"
    terminal = on_terminal("exec", "-b", branch, "--", text)
    terminal.expect(b"begun")
    for _ in range(2):
        terminal.sendintr()
        terminal.expect(b"no\r\n")
    terminal.sendintr()
    assert exit_status(terminal) == 137


def test_signals_that_the_caller_ignores_stay_ignored(home: Home, branch: str) -> None:
    command = " ".join(home.argv("exec", "-b", branch, "--", "'echo begun; read x </tmp/go'"))
    home.must("exec", "-b", branch, "--", "mkfifo /tmp/go")
    with subprocess.Popen(
        ["/bin/sh", "-c", f"trap '' HUP; exec {command}"], env=home.env, stdout=subprocess.PIPE
    ) as process:
        read_until(process, b"begun\n")
        process.send_signal(signal.SIGHUP)
        home.must("run", "-b", branch, "--", "sh", "-c", "echo >/tmp/go")
        assert process.wait(PATIENCE_S) == 0


def test_output_that_cannot_be_written_is_an_error(home: Home, branch: str) -> None:
    with (
        open("/dev/full", "wb") as full,
        started(home, "exec", "-b", branch, "--", "yes", stdout=full.fileno()) as process,
    ):
        assert process.wait(PATIENCE_S) == 125
        assert process.stderr is not None
        assert b"No space left on device" in process.stderr.read()


def test_a_slow_reader_loses_nothing(home: Home, branch: str) -> None:
    with home.background("exec", "-b", branch, "--", "seq 1000000") as process:
        assert process.stdout is not None
        found = b""
        for piece in iter(lambda: os.read(process.stdout.fileno(), 50_000), b""):
            found += piece
        assert process.wait(PATIENCE_S) == 0
    assert found == b"".join(b"%d\n" % number for number in range(1, 1_000_001))


# --- restarts


@pytest.mark.soak(part="faults")
def test_a_killed_daemon_does_not_disturb_a_running_exec(home: Home, branch: str) -> None:
    with home.background(
        "exec", "-b", branch, "--", "for i in $(seq 200); do echo $i; sleep 0.01; done; (exit 9)"
    ) as process:
        found = read_until(process, b"\n20\n")
        os.kill(daemon_pid(home), signal.SIGKILL)
        assert process.stdout is not None
        found += process.stdout.read()
        assert process.wait(PATIENCE_S) == 9
    assert found == b"".join(b"%d\n" % number for number in range(1, 201))


# --- on a terminal


def test_with_tty_the_command_has_this_terminal(branch: str, on_terminal: Spawn) -> None:
    terminal = on_terminal(
        "exec", "-b", branch, "--tty", "--", "test -t 0 && stty size && read -p 'name? ' x && echo hello $x; (exit 4)"
    )
    terminal.expect(b"30 100\r\n")
    terminal.expect(b"name\\? ")
    terminal.send(b"bob\r")
    terminal.expect(b"hello bob\r\n")
    assert exit_status(terminal) == 4
    assert is_cooked(terminal)


def test_with_tty_ctrl_c_is_passed_to_the_command(branch: str, on_terminal: Spawn) -> None:
    terminal = on_terminal("exec", "-b", branch, "--tty", "--", SLEEPER)
    terminal.expect(b"begun")
    terminal.send(b"\x03")
    assert exit_status(terminal) == 130


def test_exec_returns_although_a_background_child_still_runs(home: Home, branch: str) -> None:
    assert home.must("exec", "-b", branch, "--", "sleep 1000 & echo done").stdout.endswith("done\n")


def test_input_of_an_interrupted_read_does_not_reach_the_hooks(home: Home, branch: str, on_terminal: Spawn) -> None:
    """bash passes the rest of the input of an interrupted `read` to the next `read`, even of another file."""
    home.must("exec", "-b", branch, "--", "yes waypoint | head -c 100M >/tmp/large")
    terminal = on_terminal("attach", branch)
    terminal.send(b"echo be''gun; IFS= read -r -d '' large </tmp/large\r")
    terminal.expect_exact(b"begun\r\n")
    terminal.send(b"\x03")
    terminal.expect_exact(b"^C")
    assert home.must("exec", "-b", branch, "--", "echo works ${#large}").stdout == "works 0\n"
