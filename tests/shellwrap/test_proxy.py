"""The terminal proxy between two ptys: no daemon, no session."""

import contextlib
import fcntl
import hashlib
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pexpect.fdpexpect
import pytest

from tests.shellwrap import proxy_program
from tests.waiting import PATIENCE_S

PROGRAM = str(proxy_program.__file__)
Attributes = list[int | list[bytes | int]]


class Shown:
    """The proxy on a terminal of the test. The terminal's modes are unusual, to test that they are restored."""

    def __init__(self, report: Path, *command: str) -> None:
        self._report = report
        self.master, self.slave = os.openpty()
        self.resize(30, 100)
        modes = termios.tcgetattr(self.slave)
        modes[3] &= ~termios.ECHOE
        modes[6][termios.VINTR] = b"\x05"
        modes[6][termios.VTIME] = 3
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self.before = self.attributes()
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, str(report), *command],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        self.screen = pexpect.fdpexpect.fdspawn(self.master, timeout=PATIENCE_S)

    def attributes(self) -> Attributes:
        return termios.tcgetattr(self.slave)

    def is_raw(self) -> bool:
        lflag = self.attributes()[3]
        assert isinstance(lflag, int)
        return not lflag & (termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, keys: bytes) -> None:
        rest = memoryview(keys)
        while rest:
            rest = rest[os.write(self.master, rest) :]

    def outcome(self) -> str:
        """Wait for the end of the proxy, and return its report."""
        self.process.wait(PATIENCE_S)
        return self._report.read_text()

    def rest(self) -> bytes:
        """Return the unread output on the screen, after the end of the proxy."""
        os.set_blocking(self.master, False)
        found = bytes(self.screen.buffer)
        try:
            while True:
                found += os.read(self.master, 65536)
        except (BlockingIOError, OSError):
            return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)


def take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "report"


@contextlib.contextmanager
def shown_until(report: Path, words: bytes, *command: str) -> Iterator[Shown]:
    started = Shown(report, *command)
    try:
        started.screen.expect(words)
        yield started
    finally:
        started.close()


@pytest.fixture
def shell(report: Path) -> Iterator[Shown]:
    """A proxy that shows a ready program, which echoes lines and ends at the line `end`."""
    script = "stty -echo; echo ready; while read -r line && [ $line != end ]; do echo got $line; done"
    with shown_until(report, b"ready\r\n", "sh", "-c", script) as started:
        yield started


def test_the_terminal_is_raw_while_the_program_is_shown(shell: Shown) -> None:
    assert shell.is_raw()


def test_input_and_output_are_passed_on(shell: Shown) -> None:
    shell.type(b"hello\r")
    shell.screen.expect(b"got hello\r\n")


def test_when_the_other_end_closes_the_terminal_modes_are_restored(shell: Shown) -> None:
    shell.type(b"end\r")
    assert shell.outcome().startswith("OVER")
    assert shell.attributes() == shell.before


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"])
def test_after_a_signal_the_terminal_modes_are_restored(shell: Shown, name: str) -> None:
    number = signal.Signals[name]
    shell.process.send_signal(number)
    assert shell.outcome().startswith(f"SIGNALLED {number}")
    assert shell.attributes() == shell.before


def test_after_an_error_of_the_other_end_the_terminal_modes_are_restored(report: Path) -> None:
    shown = Shown(report, proxy_program.FAILING)
    try:
        assert shown.outcome() == "raised the other end broke"
        assert shown.attributes() == shown.before
    finally:
        shown.close()


def test_the_detach_key_detaches_and_restores_the_terminal_modes(shell: Shown) -> None:
    shell.type(b"\x1dd")
    assert shell.outcome().startswith("DETACHED")
    assert shell.attributes() == shell.before


def test_a_hang_up_of_the_terminal_ends_the_proxy(shell: Shown) -> None:
    os.close(shell.slave)
    os.close(shell.master)
    shell.master = shell.slave = -1
    assert shell.outcome().split()[0] in {"HUNG_UP", "SIGNALLED"}  # closed terminal or SIGHUP, whichever comes first


def test_the_size_of_the_terminal_is_passed_on_at_the_start_and_when_it_changes(report: Path) -> None:
    script = "trap 'stty size' WINCH; stty size; while :; do sleep 60 & wait; kill $!; done"
    with shown_until(report, b"30 100\r\n", "sh", "-c", script) as shown:
        shown.resize(41, 123)
        shown.screen.expect(b"41 123\r\n")


def test_signal_keys_are_sent_as_bytes_to_the_other_end(report: Path) -> None:
    script = "stty raw -echo; echo ready; dd bs=1 count=4 2>/dev/null | od -An -tx1"
    with shown_until(report, b"ready", "sh", "-c", script) as shown:
        shown.type(b"\x03\x1a\x1c\x05")
        shown.screen.expect(b"03 1a 1c 05")


def test_a_large_paste_arrives_whole(report: Path) -> None:
    pasted = os.urandom(1 << 20).replace(b"\x1d", b"\x1c")
    script = f"stty raw -echo; echo ready; head -c {len(pasted)} | sha256sum"
    with shown_until(report, b"ready", "sh", "-c", script) as shown:
        shown.type(pasted)
        shown.screen.expect(hashlib.sha256(pasted).hexdigest().encode())


def test_much_output_arrives_whole_at_a_slow_terminal(report: Path, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "content").write_bytes(content)
    script = f"stty raw -echo; echo ready; read -r go; cat {tmp_path}/content; printf END; read -r go"
    with shown_until(report, b"ready\n", "sh", "-c", script) as shown:
        shown.type(b"\n")
        found = bytearray(shown.screen.buffer)
        while not found.endswith(b"END"):  # read small pieces, so that the proxy's writes are partial
            found += os.read(shown.master, 777)
        assert found[:-3] == content


def test_all_output_is_shown_before_the_proxy_returns(report: Path) -> None:
    shown = Shown(report, "sh", "-c", "stty raw; seq 1 20000; printf LAST")
    try:
        shown.screen.expect(b"LAST")
        assert shown.outcome().startswith("OVER")
    finally:
        shown.close()


def test_modes_that_a_full_screen_program_left_on_are_switched_off(report: Path) -> None:
    left_on = r"\033[?1049h\033[?1000;1006h\033[?2004h\033[?25l\033[31m\033=\033[>1u"
    with shown_until(report, b"ready", "sh", "-c", f"printf '{left_on}'; printf ready; exec sleep 60") as shown:
        shown.process.terminate()
        shown.outcome()
        undone = shown.rest()
        for sequence in (b"?1049l", b"?1000l", b"?1006l", b"?2004l", b"?25h"):
            assert b"\x1b[" + sequence in undone
        assert undone.index(b"?1000l") < undone.index(b"?1049l")
        assert b"\x1b>" in undone
        assert b"\x1b[<99u" in undone
        assert undone.endswith(b"\x1b[m")


def test_modes_that_were_not_on_are_not_switched_off(shell: Shown) -> None:
    shell.type(b"end\r")
    shell.outcome()
    assert shell.rest() == b"\x1b[m"


def test_signals_that_the_caller_ignores_stay_ignored(report: Path) -> None:
    """nohup starts programs with SIGHUP ignored."""
    script = f'trap "" HUP; exec {sys.executable} {PROGRAM} {report} sh -c "echo ready; read x"'
    with pexpect.spawn("/bin/sh", ["-c", script], timeout=PATIENCE_S) as terminal:
        terminal.expect("ready")
        os.kill(terminal.pid, signal.SIGHUP)
        terminal.sendline()
        terminal.expect(pexpect.EOF)
    assert report.read_text().startswith("OVER")


@pytest.mark.parametrize("name", ["TSTP", "STOP"])
def test_a_stopped_proxy_restores_the_terminal_modes_and_continues_after_fg(report: Path, name: str) -> None:
    """The proxy runs under a shell with job control. A signal stops it, because Ctrl-Z goes to the other end."""
    script = "stty -echo; echo ready; while read -r line && [ $line != end ]; do echo got $line; stty size; done"
    with pexpect.spawn(
        "/bin/bash",
        ["--norc", "--noprofile", "-i"],
        timeout=PATIENCE_S,
        dimensions=(24, 80),
        env={**plain_environment(), "HISTFILE": ""},
    ) as terminal:
        terminal.expect_exact("$ ")
        terminal.sendline(f"{sys.executable} {PROGRAM} {report} sh -c '{script}'")
        terminal.expect("ready\r\n")
        group = os.tcgetpgrp(terminal.child_fd)
        os.kill(group, signal.Signals[f"SIG{name}"])
        terminal.expect("Stopped")
        terminal.expect_exact("$ ")
        terminal.sendline("stty -a | grep -owE -e '-?(icanon|isig|opost)' | xargs echo modes")
        if name == "TSTP":  # after SIGSTOP only the shell can restore the modes
            terminal.expect_exact("modes opost isig icanon")
        terminal.setwinsize(33, 99)
        terminal.sendline("fg")
        terminal.sendline("back")
        terminal.expect("got back\r\n33 99\r\n")
        terminal.sendline("end")
        terminal.expect_exact("$ ")
        terminal.sendline("exit")
        terminal.expect(pexpect.EOF)
    assert report.read_text() == "OVER 0 repaints=1"


def plain_environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "$ "}
