"""The terminal that a person sits at: raw while a session is shown on it, afterwards exactly as it was."""

import contextlib
import errno
import os
import select
import termios
from types import TracebackType

from shellwrap.screen_undo import ScreenUndo
from shellwrap.window_size import terminal_size

PATIENCE_MS = 1000  # with a terminal that takes no output, when it is left
_IFLAG, _OFLAG, _CFLAG, _LFLAG, _CC = 0, 1, 2, 3, 6


class LocalTerminal:
    """A `with` around the time in which the terminal is raw.

    `output_fd` is a descriptor of its own to write to; `shown` has to be fed with what is written.
    """

    def __init__(self, input_fd: int, output_fd: int) -> None:
        """`input_fd` must be a terminal, else termios.error is raised. `output_fd` may be anything."""
        self.input_fd = input_fd
        self.shown = ScreenUndo()
        self._saved = termios.tcgetattr(input_fd)
        self.output_fd = _open_again(output_fd)

    def __enter__(self) -> "LocalTerminal":
        try:
            self.make_raw()
        except BaseException:
            os.close(self.output_fd)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.restore()
        finally:
            os.close(self.output_fd)

    def size(self) -> tuple[int, int]:
        return terminal_size(self.input_fd)

    def make_raw(self) -> None:
        """As cfmakeraw(3). Stops with SIGTTOU while we are in the background, like every program that sets modes."""
        raw = [*self._saved[:_CC], list(self._saved[_CC])]
        raw[_IFLAG] &= ~(
            termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP | termios.INLCR | termios.IGNCR
            | termios.ICRNL | termios.IXON | termios.INPCK
        )  # fmt: skip
        raw[_OFLAG] &= ~termios.OPOST
        raw[_LFLAG] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
        raw[_CFLAG] = raw[_CFLAG] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
        raw[_CC][termios.VMIN], raw[_CC][termios.VTIME] = 1, 0
        _set(self.input_fd, raw)

    def restore(self) -> None:
        """Switch off what programs left on, and bring the modes back. A terminal that is gone is no error."""
        with contextlib.suppress(OSError):  # EIO: hung up; or so stuck that it shows nothing anyway
            self._write_patiently(self.shown.undo())
        self.shown = ScreenUndo()
        with contextlib.suppress(termios.error):  # EIO: hung up
            _set(self.input_fd, self._saved)

    def _write_patiently(self, data: bytes) -> None:
        poll = select.poll()
        poll.register(self.output_fd, select.POLLOUT)
        while data and poll.poll(PATIENCE_MS):
            data = data[os.write(self.output_fd, data) :]


def _set(fd: int, modes: list[int | list[bytes | int]]) -> None:
    # TCSANOW: draining would wait for a terminal that takes no more output, flushing would lose what was typed ahead.
    while True:
        try:
            return termios.tcsetattr(fd, termios.TCSANOW, modes)
        except termios.error as error:
            if error.args[0] != errno.EINTR:  # stopped by SIGTTOU and continued: now it may work
                raise


def _open_again(fd: int) -> int:
    """The same terminal through a file description of our own, which may be O_NONBLOCK without anyone else noticing.

    Where that cannot be (not a terminal, another's after `su`, another devpts), a duplicate: then writing may wait.
    """
    if os.isatty(fd):
        with contextlib.suppress(OSError):
            opened = os.open(os.ttyname(fd), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            here, there = os.fstat(fd), os.fstat(opened)
            if (here.st_dev, here.st_rdev) == (there.st_dev, there.st_rdev):
                return opened
            os.close(opened)
    return os.dup(fd)
