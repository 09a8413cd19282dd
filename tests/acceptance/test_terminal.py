"""`waypoint shell` and `attach` at a terminal: keys, sizes, several clients, and modes restored at the end."""

import hashlib
import os
import signal
from collections.abc import Callable

import pytest

from tests.acceptance.people import Person
from tests.acceptance.seat import Seat
from tests.acceptance.sessions import session
from tests.collecting import collecting
from tests.homes import Home
from tests.waiting import wait_until

pytestmark = pytest.mark.privileged
Take = Callable[..., Seat]

# A Python program, as a bash trap misses a signal that arrives right before bash reads the next key.
SAY_SIZES = """python3 -c '
import os, signal as s
s.pthread_sigmask(s.SIG_BLOCK, [s.SIGWINCH])
print("waits")
for _ in iter(lambda: s.sigwait([s.SIGWINCH]), None): print("now", *reversed(os.get_terminal_size()))'"""


def attached(home: Home, branch: str) -> int:
    [found] = [one for one in home.must("ps", "--json").json() if one["branch"] == branch]
    count = found["attached"]
    assert isinstance(count, int)
    return count


def test_shell_attaches_this_terminal_and_returns_the_exit_status_of_the_session(
    home: Home, person: Person, seat: Take
) -> None:
    outer = seat(33, 91)
    outer.type(b"waypoint shell new --user %s\r" % person.name.encode()).prompt()
    outer.type(b"stty size; tty; echo $TERM $WAYPOINT_BRANCH; id -un; ls -ld $(tty)\r")
    outer.see(
        rb"33 91\r\n/dev/pts/0\r\nxterm-256color new\r\n%s\r\ncrw--w---- 1 %s tty" % ((person.name.encode(),) * 2)
    )
    outer.type(b"exit 7\r")
    assert outer.left() == 7
    [found] = [one for one in home.must("ps", "--all", "--json").json() if one["branch"] == "new"]
    assert found["state"] == "ended"


def test_a_program_in_the_session_sees_each_new_window_size(branch: str, seat: Take) -> None:
    outer = seat().attach(branch)
    outer.type(b"stty size; %s\r" % SAY_SIZES.encode()).see(rb"30 100\r\nwaits\r\n")
    for rows, cols in ((50, 200), (10, 20), (24, 80)):
        outer.terminal.setwinsize(rows, cols)
        outer.see(rb"now %d %d\r\n" % (rows, cols))


def test_the_terminal_is_raw_and_the_session_gets_every_byte(branch: str, seat: Take) -> None:
    outer = seat().attach(branch)
    outer.type(b"stty raw -echo; echo ready; head -c 253 | od -An -v -tx1 | tr -d ' \\n'; stty sane\r")
    outer.see(rb"ready\n")
    every = bytes(value for value in range(256) if value not in b"\x1d\r\n")
    outer.type(every)
    outer.see(every.hex().encode())


def test_control_keys_act_on_the_program_in_the_session(branch: str, seat: Take) -> None:
    outer = seat().attach(branch)
    outer.type(b"sh -c 'echo run\"\"ning; exec sleep 1000'; echo not this\r").see(rb"running\r\n")
    outer.type(b"\x03").see(rb"\^C\r\n")
    outer.prompt().type(b"echo status $?\r").see(rb"status 130\r\n")
    outer.prompt().type(b"sh -c 'echo run\"\"ning; exec cat'\r").see(rb"running\r\n")
    outer.type(b"\x1a").see(rb"\[1\]\+ +Stopped +sh -c")
    outer.prompt().type(b"fg\r").see(rb"exec cat'\r\n")
    outer.type(b"echoed\r").see(rb"echoed\r\nechoed\r\n")
    outer.type(b"\x04").prompt().type(b"jobs; echo status $?\r").see(rb"\rstatus 0\r\n")
    outer.prompt().type(b"ulimit -c 0; sh -c 'echo run\"\"ning; exec sleep 1000'\r").see(rb"running\r\n")
    outer.type(b"\x1c").see(rb"Quit")
    outer.prompt().type(b"(exit 3)\r").prompt().type(b"\x04")
    assert outer.left() == 3


def test_a_long_paste_arrives_whole(branch: str, seat: Take) -> None:
    outer = seat().attach(branch)
    outer.type(b"cd /tmp; stty -echo; echo rea''dy; cat > pasted; stty echo; md5sum < pasted\r").see(rb"ready\r\n")
    lines = b"".join(b"line %d of what is pasted\r" % number for number in range(10_000))
    outer.type(lines + b"\x04")
    outer.see(hashlib.md5(lines.replace(b"\r", b"\n")).hexdigest().encode())


def test_shell_attaches_to_a_running_session(home: Home, branch: str, seat: Take) -> None:
    first, second = seat(), seat()
    first.type(b"waypoint shell %s\r" % branch.encode()).prompt().type(b"mine=42\r").prompt()
    second.type(b"waypoint shell %s\r" % branch.encode()).see(rb"mine=42")
    second.prompt().type(b"echo got $mine\r").see(rb"got 42\r\n")
    first.see(rb"got 42\r\n")
    assert attached(home, branch) == 2
    first.type(b"exit 4\r")
    assert (first.left(), second.left()) == (4, 4)


def test_all_attached_terminals_show_the_same(branch: str, seat: Take) -> None:
    seats = [seat(), seat(), seat()]
    for one in seats:
        one.attach(branch)
    for number, typing in enumerate(seats):
        typing.type(b"echo from$((%d))" % number)
        for one in seats:
            one.see(rb"echo from\$\(\(%d\)\)" % number)
        typing.type(b"\r")
        for one in seats:
            one.see(rb"from%d\r\n" % number)


def test_the_smallest_attached_terminal_decides_the_size(home: Home, branch: str, seat: Take) -> None:
    large, small, wide = seat(40, 120), seat(24, 80), seat(20, 132)
    large.attach(branch)
    large.type(b"stty size; %s\r" % SAY_SIZES.encode()).see(rb"40 120\r\nwaits\r\n")
    small.type(b"waypoint attach %s\r" % branch.encode())
    large.see(rb"now 24 80\r\n")
    wide.type(b"waypoint attach %s\r" % branch.encode())
    large.see(rb"now 20 80\r\n")
    small.type(b"\x1dd")
    assert small.left() == 0
    large.see(rb"now 20 120\r\n")
    os.kill(wide.client_pid(), signal.SIGKILL)
    large.see(rb"now 40 120\r\n")
    assert attached(home, branch) == 1


ODD_MODES = "stty intr ^Y susp undef erase ^H -echoctl ixany min 3 -onlcr tostop"


def odd_modes(outer: Seat) -> list[int | list[bytes | int]]:
    """Set unusual terminal modes and return them as termios reports them."""
    outer.outside(ODD_MODES)
    return outer.modes()


def leave_by_exit(home: Home, outer: Seat) -> int:
    outer.type(b"exit 5\r")
    return 5


def leave_by_detaching(home: Home, outer: Seat) -> int:
    outer.type(b"\x1dd")
    return 0


def leave_by_a_signal(home: Home, outer: Seat) -> int:
    os.kill(outer.client_pid(), signal.SIGTERM)
    return 128 + signal.SIGTERM


def leave_after_a_killed_daemon(home: Home, outer: Seat) -> int:
    os.kill(home.must("daemon", "status", "--json").json()["pid"], signal.SIGKILL)
    outer.type(b"exit 6\r")
    return 6


def leave_by_a_stop_from_elsewhere(home: Home, outer: Seat) -> int:
    home.must("stop", "--files", "--all")
    return 128  # the session has no exit status


LEAVE = (
    leave_by_exit,
    leave_by_detaching,
    leave_by_a_signal,
    leave_after_a_killed_daemon,
    leave_by_a_stop_from_elsewhere,
)


def test_the_terminal_modes_are_restored_when_the_client_leaves(home: Home, person: Person, seat: Take) -> None:
    """For each way to leave, and after output that changes the modes."""
    with collecting() as row:
        for leave in LEAVE:
            for what in (b"true", b"printf '\\033[?1049h\\033[?1006;1003h\\033[?25l\\033[?1h\\033='; stty raw"):
                with row(f"{leave.__name__} after {what!r}"), session(home, person.name) as branch:
                    outer = seat()
                    before, said_before = odd_modes(outer), outer.outside("stty -g")
                    outer.attach(branch)
                    assert outer.modes() != before
                    outer.type(what + b"; echo do''ne\r").see(rb"done")
                    expected = leave(home, outer)
                    assert outer.left() == expected
                    assert outer.modes() == before
                    assert outer.outside("stty -g") == said_before


def test_suspending_the_client_restores_the_terminal_and_fg_repaints(branch: str, seat: Take) -> None:
    outer = seat()
    outer.outside("set -m")
    before = outer.modes()
    outer.attach(branch).type(b"echo se''en\r").see(rb"seen\r\n")
    os.killpg(outer.client_pid(), signal.SIGTSTP)
    outer.see(rb"Stopped")
    outer.outside("true")
    assert outer.modes() == before
    outer.type(b"fg\r").see(rb"seen\r\n")
    outer.prompt().type(b"exit 3\r")
    assert outer.left() == 3
    assert outer.modes() == before


def test_without_a_terminal_shell_and_attach_are_refused(home: Home, branch: str) -> None:
    for verb in ("shell", "attach"):
        for name in (branch, "never"):
            done = home.cli(verb, name, stdin=b"echo hi\n")
            assert (done.code, done.stdout) == (2, "")
            assert "stdin is not a terminal" in done.stderr
            assert "waypoint exec" in done.stderr
    assert "never" not in [one["branch"] for one in home.must("ps", "--all", "--json").json()]
    wait_until(lambda: attached(home, branch) == 0, "nobody is attached")
