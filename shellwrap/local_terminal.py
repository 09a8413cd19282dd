"""The person's own terminal: set to raw mode while it shows a session, and restored exactly afterwards."""

import contextlib
import errno
import os
import select
import termios
from types import TracebackType

from shellwrap.screen_undo import ScreenUndo
from shellwrap.window_size import terminal_size

PATIENCE_MS = 1000  # how long `restore` waits for a terminal that takes no output
_IFLAG, _OFLAG, _CFLAG, _LFLAG, _CC = 0, 1, 2, 3, 6


class LocalTerminal:
    """The terminal is raw inside the `with`.

    The user of this object must write to `output_fd` (a new descriptor, if possible non-blocking) and pass all that is
    written to `shown.feed`, so that `restore` knows what to undo.
    """

    def __init__(self, input_fd: int, output_fd: int) -> None:
        """Raises termios.error if `input_fd` is not a terminal. `output_fd` need not be one."""
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
        """Rows and columns."""
        return terminal_size(self.input_fd)

    def make_raw(self) -> None:
        """Set the modes of cfmakeraw(3). In the background, SIGTTOU stops this process, as for any change of modes."""
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
        """Undo what programs have switched on, and restore the modes. No error if the terminal has hung up."""
        with contextlib.suppress(OSError):  # EIO: hung up
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
    # TCSANOW: TCSADRAIN would wait for a terminal that takes no output, TCSAFLUSH would lose what was typed ahead.
    while True:
        try:
            return termios.tcsetattr(fd, termios.TCSANOW, modes)
        except termios.error as error:
            if error.args[0] != errno.EINTR:  # EINTR: stopped by SIGTTOU and continued, so try again
                raise


def _open_again(fd: int) -> int:
    """Open the terminal behind `fd` again, with O_NONBLOCK. The new open file description does not affect `fd`'s users.

    Where that is impossible (`fd` is no terminal, belongs to another user after `su`, or is of another devpts), return
    a duplicate of `fd`; writing to it may block.
    """
    if os.isatty(fd):
        with contextlib.suppress(OSError):
            opened = os.open(os.ttyname(fd), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            here, there = os.fstat(fd), os.fstat(opened)
            if (here.st_dev, here.st_rdev) == (there.st_dev, there.st_rdev):
                return opened
            os.close(opened)
    return os.dup(fd)
