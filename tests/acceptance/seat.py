"""A terminal with a shell outside of all sessions, at which tests type `waypoint ...`."""

import os
import re
import shlex
import termios
from typing import Self

import pexpect

from tests.homes import Home
from tests.waiting import PATIENCE_S

PROMPT = b"outside> "


class Seat:
    """A terminal that runs sh. As sh has no line editor, only `stty` changes the terminal's modes."""

    def __init__(self, home: Home, rows: int, cols: int) -> None:
        self.terminal: pexpect.spawn[bytes] = pexpect.spawn(
            "/bin/sh",
            ["-i"],
            env={**home.env, "PS1": PROMPT.decode()},
            timeout=PATIENCE_S,
            dimensions=(rows, cols),
            encoding=None,
        )
        self.terminal.delaybeforesend = None
        self.see(re.escape(PROMPT))
        self.outside(f'waypoint() {{ {shlex.join(home.argv())} "$@"; }}')

    def type(self, data: bytes) -> Self:
        self.terminal.send(data)
        return self

    def see(self, pattern: bytes) -> "re.Match[bytes]":
        """Wait until the output matches the regular expression."""
        try:
            self.terminal.expect(pattern)
        except pexpect.ExceptionPexpect:
            raise AssertionError(f"{pattern!r} did not appear after {self.terminal.before[-500:]!r}") from None
        assert isinstance(self.terminal.match, re.Match)
        return self.terminal.match

    def prompt(self) -> Self:
        """Wait for the prompt of a session's shell."""
        self.see(rb"[#$%] (?:\x1b\S*)?$")
        return self

    def attach(self, branch: str) -> Self:
        """Attach to the branch and wait for the prompt of its shell."""
        return self.type(b"waypoint attach %s\r" % branch.encode()).prompt()

    def outside(self, command: str) -> bytes:
        """Run a command in the outer shell to its end; return its output."""
        self.type(command.encode() + b"\r")
        self.see(rb"\r?\n")
        self.see(re.escape(PROMPT))
        shown = self.terminal.before
        assert isinstance(shown, bytes)
        return shown

    def left(self) -> int:
        """Wait until the running command has ended; return its exit status."""
        self.see(re.escape(PROMPT))
        return int(self.outside("echo $?"))

    def modes(self) -> list[int | list[bytes | int]]:
        return termios.tcgetattr(self.terminal.child_fd)

    def client_pid(self) -> int:
        """Return the pid of the terminal's foreground process group."""
        return os.tcgetpgrp(self.terminal.child_fd)

    def close(self) -> None:
        if not self.terminal.closed:
            self.terminal.close(force=True)
