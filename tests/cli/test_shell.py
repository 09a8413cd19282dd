"""`waypoint shell` and `attach`, on terminals and without. See also tests/acceptance/test_terminal.py."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Spawn, daemon_pid, exit_status, is_cooked
from tests.collecting import collecting
from tests.homes import Home

pytestmark = pytest.mark.privileged

PROMPT = rb"[#$] (?:\x1b\[\?2004h)?$"  # bash 5.2.37 switches bracketed paste on after the prompt


def test_a_new_session_shows_its_cursor_and_wraps_lines(on_terminal: Spawn) -> None:
    terminal = on_terminal("shell", "t-cursor")
    terminal.expect(PROMPT)
    for mode in (b"25", b"7"):
        switched = re.findall(rb"\x1b\[\?(?:\d+;)*%s(?:;\d+)*([hl])" % mode, terminal.before)
        assert switched[-1:] == [b"h"]


def test_the_detach_key_leaves_the_session_running(home: Home, branch: str, on_terminal: Spawn) -> None:
    terminal = on_terminal("attach", "-b", branch)
    terminal.expect(PROMPT)
    terminal.send(b"here=1\r")
    terminal.expect(PROMPT)
    terminal.send(b"\x1dd")
    terminal.expect_exact(f"[detached from {branch}]".encode())
    assert exit_status(terminal) == 0
    assert is_cooked(terminal)
    assert home.must("exec", "-b", branch, "--", "echo $here").stdout == "1\n"


def test_an_attached_terminal_works_on_after_the_daemon_was_killed(home: Home, branch: str, on_terminal: Spawn) -> None:
    terminal = on_terminal("attach", branch)
    terminal.expect(PROMPT)
    for round_number in range(3):
        os.kill(daemon_pid(home), signal.SIGKILL)
        terminal.send(b"echo after$((%d+1))\r" % round_number)
        terminal.expect(b"after%d\r\n" % (round_number + 1))
    assert b"waiting for the daemon" not in terminal.before


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_leaves_the_session_running_and_resets_the_terminal(
    home: Home, branch: str, on_terminal: Spawn, name: str, code: int
) -> None:
    terminal = on_terminal("attach", branch)
    terminal.expect(PROMPT)
    assert not is_cooked(terminal)
    os.kill(terminal.pid, signal.Signals[name])
    assert exit_status(terminal) == code
    assert is_cooked(terminal)
    assert home.must("exec", "-b", branch, "--", "echo alive").stdout == "alive\n"


def test_a_closed_terminal_leaves_the_session_running(home: Home, branch: str, on_terminal: Spawn) -> None:
    terminal = on_terminal("attach", branch)
    terminal.expect(PROMPT)
    terminal.ptyproc.fileobj.close()
    terminal.wait()
    assert home.must("exec", "-b", branch, "--", "echo alive").stdout == "alive\n"


def test_the_first_line_of_shell_explains_the_copy_and_how_to_leave(
    home: Home, on_terminal: Spawn, tmp_path: Path
) -> None:
    terminal = on_terminal("shell", "t-enter", "--bind", f"{tmp_path}:/mnt")
    terminal.expect_exact(b"[t-enter: everything here is a copy of this machine, except /mnt. ")
    terminal.expect_exact(b"To end: exit. To detach: Ctrl-] d]\r\n")
    terminal.expect(rb"\[t-enter\] .*" + PROMPT)
    terminal.send(b"\x1dd")
    terminal.expect_exact(b"[the session is still running; to return: waypoint attach t-enter]")
    home.must("stop", "t-enter", "--discard")


def test_the_last_line_of_shell_names_the_kept_files(home: Home, on_terminal: Spawn) -> None:
    terminal = on_terminal("shell", "t-leave")
    terminal.expect(PROMPT)
    terminal.send(b"unset HISTFILE; mkdir /opt/made; touch /opt/made/1 /opt/made/2 /opt/3; exit 7\r")
    terminal.expect(
        rb"\[t-leave has ended; kept as ([0-9a-f]{12}) \(3 files changed\); to continue: waypoint shell t-leave\]\r\n"
        rb"\[changes in [^;]*; to see them: waypoint diff t-leave; to bring them onto this machine: "
        rb"waypoint apply t-leave\]"
    )
    kept = terminal.match[1].decode()
    assert exit_status(terminal) == 7
    assert home.must("show", "t-leave", "--json").json()["capture"].startswith(kept)


def test_attached_terminals_show_that_the_session_was_stopped_or_discarded(
    home: Home, branch: str, on_terminal: Spawn
) -> None:
    terminal = on_terminal("attach", branch)
    terminal.expect(PROMPT)
    home.must("checkpoint", f"{branch}-parked", "-b", branch, "--park")
    terminal.expect(rb"kept as [0-9a-f]{12} with its processes")
    home.must("shell", branch, "-d")
    terminal = on_terminal("attach", branch)
    terminal.expect(PROMPT)
    home.must("stop", branch, "--discard")
    terminal.expect_exact(
        f"{branch} was stopped or killed; nothing is kept; to continue from its state before: ".encode()
    )
    terminal.expect_exact(f"waypoint shell {branch}]".encode())


def test_the_advised_command_attaches_again_after_daemon_stop(home: Home, branch: str, on_terminal: Spawn) -> None:
    terminal = on_terminal("attach", branch)
    terminal.expect(PROMPT)
    terminal.send(b"kept=here\r")
    terminal.expect(PROMPT)
    home.must("daemon", "stop")
    terminal.expect_exact(b"the daemon was stopped")
    terminal.expect_exact(b"start a new daemon with 'waypoint ps'; the session and its processes are still running")
    assert exit_status(terminal) == 4
    terminal = on_terminal("attach", branch)
    terminal.send(b"echo $kept.$kept\r")
    terminal.expect_exact(b"here.here")


# --- without a terminal


def test_a_start_reports_a_left_out_mount_only_if_the_shell_starts_in_it(home: Home, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(tmp_path)], check=True)
    try:
        home.must("daemon", "stop")  # the next daemon sees the mount
        assert "not in the session" not in home.must("shell", "t-out", "-d").stderr
        assert str(tmp_path) in home.must("ps", "--json").stdout
        home.must("checkpoint", "t-out-cp", "-b", "t-out")
        assert f"left out     {tmp_path}" in home.must("show", "t-out").stdout
        command = home.argv("shell", "t-there-out", "-d")
        done = subprocess.run(command, env=home.env, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert f"not in the session: {tmp_path} (tmpfs: read-only)" in done.stderr
        for branch in ("t-out", "t-there-out"):
            home.must("stop", branch, "--discard")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_wrong_options_start_no_session(home: Home) -> None:
    with collecting() as row:
        for options, said in (
            ("--shell nosuch", "shell"),
            ("--shell /usr", "shell"),
            ("--shell bin/bash", "shell"),
            ("--shell=", "shell"),
            ("-b other", "two branches"),
            ("--net no", "--net"),
        ):
            with row(options):
                done = home.cli("shell", "t-nope", "-d", *options.split())
                assert (done.code, done.stdout, said in done.stderr) == (2, "", True), done.stderr
    assert "t-nope" not in [one["branch"] for one in home.must("ps", "--all", "--json").json()]


def test_cwd_can_be_a_directory_of_the_session_only(home: Home) -> None:
    home.must("shell", "t-made", "-d")
    home.must("exec", "-b", "t-made", "--", "mkdir /opt/only-here")
    home.must("stop", "--files", "t-made")
    home.must("shell", "t-made", "-d", "--cwd", "/opt/only-here")
    assert home.must("exec", "-b", "t-made", "--", "pwd").stdout == "/opt/only-here\n"
    home.must("stop", "t-made", "--discard")


@pytest.mark.requires("zsh")
@pytest.mark.parametrize("words", [["--shell", "zsh"], ["--shell", "/usr/bin/zsh"], []], ids=["name", "path", "SHELL"])
def test_the_session_runs_the_requested_shell(home: Home, words: list[str]) -> None:
    home.must("shell", "t-zsh", "-d", *words, env={} if words else {"SHELL": "/usr/bin/zsh"})
    show = "echo ${ZSH_VERSION:+zsh} $SHELL"
    assert home.must("exec", "-b", "t-zsh", "--", show).stdout == "zsh /usr/bin/zsh\n"
    home.must("stop", "--files", "t-zsh")
    home.must("shell", "t-zsh", "-d")  # a branch keeps its shell
    assert home.must("exec", "-b", "t-zsh", "--", show).stdout == "zsh /usr/bin/zsh\n"
    home.must("stop", "t-zsh", "--discard")


@pytest.mark.requires("zsh", "criu")
def test_zsh_works_as_the_main_shell(home: Home) -> None:
    home.must("shell", "t-main", "-d", "--shell", "zsh")
    home.must("exec", "-b", "t-main", "--", "cd /usr; x=one; f() { echo eff }")
    home.must("checkpoint", "t-main-cp", "-b", "t-main")
    home.must("exec", "-b", "t-main", "--", "x=two; unset -f f; cd /")
    home.must("restore", "t-main-cp", "--only", "shell")
    home.must("fork", "t-main-cp", "t-main-2")
    for branch in ("t-main", "t-main-2"):
        found = home.must("exec", "-b", branch, "--", "echo $x $PWD $WAYPOINT_BRANCH $PS1; f").stdout
        assert found.startswith(f"one /usr {branch} ")
        assert found.endswith("\neff\n")
        assert f"[{branch}]" not in found
        home.must("stop", branch, "--discard")


def test_a_shell_without_hooks_starts_with_a_warning(home: Home) -> None:
    done = home.must("shell", "t-dash", "-d", "--shell", "/bin/sh")
    assert "without exec: /bin/sh is neither bash nor zsh: 'waypoint exec' is refused" in done.stderr
    assert home.must("run", "-b", "t-dash", "--", "echo", "on").stdout == "on\n"
    home.must("stop", "t-dash", "--discard")
    # $SHELL is not an explicit request, so Waypoint uses a shell with hooks.
    done = home.must("shell", "t-plain", "-d", env={"SHELL": "/bin/sh"})
    assert done.stderr == ""
    assert home.must("ps", "--json").json()[0]["hooks"] is True
    home.must("stop", "t-plain", "--discard")


def test_shell_detached_prints_the_branch(home: Home) -> None:
    done = home.must("shell", "t-d", "-d")
    assert done.stdout == "t-d\n"
    found = home.must("shell", "-b", "t-d", "-d", "--json").json()  # already running
    assert (found["branch"], found["state"], found["user"]) == ("t-d", "live", "root")
    assert found["pid"] > 0


def test_options_that_a_running_session_does_not_have_are_refused(home: Home, tmp_path: Path) -> None:
    own = f"--cpus 1 --pids 100 --net none --bind {tmp_path}:/mnt --cwd / --shell bash".split()
    home.must("shell", "live", "-d", *own)
    assert home.must("shell", "live", "-d", *own).stdout == "live\n"
    others = {
        "--cpus": ("--cpus", "2"),
        "--pids": ("--pids", "200"),
        "--disk": ("--disk", "50M"),
        "--memory": ("--memory", "100M"),
        "--net": ("--net", "host"),
        "--allow": ("--allow", "userns"),
        "--bind": ("--bind", f"{tmp_path}:/mnt:ro"),
        "--cwd": ("--cwd", "/usr"),
        "--shell": ("--shell", "zsh"),
        "--base": ("--base", str(tmp_path)),
        "command": ("--", "true"),
    }
    for name, words in others.items():
        done = home.cli("shell", "live", "-d", *words)
        assert (done.code, done.stdout) == (4, ""), name
        assert f"it has a running session with a different {name}\n" in done.stderr
    both = home.cli("shell", "live", "-d", "--net", "private", "--disk", "50M")
    assert "with a different --disk and --net\n" in both.stderr
    home.must("stop", "live", "--discard")


def test_shell_can_run_a_command_in_place_of_the_shell(home: Home, on_terminal: Spawn) -> None:
    terminal = on_terminal("shell", "t-c", "--", "sh", "-c", "echo ready; read -r x; echo got $x; exit 3")
    terminal.expect(b"ready\r\n")
    terminal.send(b"this\r")
    terminal.expect(b"got this\r\n")
    assert exit_status(terminal) == 3


def test_words_after_the_dashes_are_never_a_branch(home: Home) -> None:
    assert home.must("shell", "-d", "--", "sleep", "1000", env={"WAYPOINT_BRANCH": "t-w"}).stdout == "t-w\n"


def test_the_shell_starts_in_the_callers_directory(home: Home) -> None:
    subprocess.run(home.argv("shell", "t-here", "-d"), env=home.env, cwd="/usr/lib", check=True)
    assert home.must("exec", "-b", "t-here", "--", "pwd").stdout == "/usr/lib\n"


def test_a_bind_can_be_a_relative_path(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("shared")
    subprocess.run(home.argv("shell", "t-bind", "-d", "--bind", ".:/mnt:ro"), env=home.env, cwd=tmp_path, check=True)
    assert home.must("exec", "-b", "t-bind", "--", "cat /mnt/file").stdout == "shared"
    home.must("stop", "--files", "t-bind")


def test_attaching_to_an_unknown_branch_is_an_error(home: Home, on_terminal: Spawn) -> None:
    terminal = on_terminal("attach", "nosuch")
    assert exit_status(terminal) == 2
    assert b"nosuch" in terminal.before
    assert is_cooked(terminal)
