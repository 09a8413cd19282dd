"""Operations on a pseudo-terminal through its master: foreground group, modes, window size, input (tty_ioctl(4),
pty(7)).
"""

import array
import contextlib
import errno
import fcntl
import os
import struct
import termios
import time
from typing import NamedTuple

# The kernel's struct termios: four words of flags, the line discipline, 19 characters.
_LOCK = struct.Struct("=4IB19s")
_IFLAG, _OFLAG, _LFLAG = 0, 1, 3
_TIOCGSID = 0x5429  # tcgetsid(3), which is missing in the module `os`
_TIOCSIG = 0x40045436
_TIOCGEXCL = 0x80045440


class Modes(NamedTuple):
    """The flag words of termios(3), and the characters that raise signals (None: the character is disabled)."""

    iflag: int
    oflag: int
    lflag: int
    interrupt: int | None
    quit: int | None
    suspend: int | None


def foreground_group(master: int) -> int:
    """Return the id of the terminal's foreground process group in the caller's pid namespace, or 0 if there is none."""
    try:
        return os.tcgetpgrp(master)
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EIO):  # not the controlling terminal of any session
            return 0
        raise


def raise_signal(master: int, number: int) -> None:
    """Send SIGINT, SIGQUIT or SIGTSTP to the terminal's foreground process group, as its key does (TIOCSIG).

    The kernel refers to the group by an object, not by its id, which may belong to another group after the group's end.
    """
    fcntl.ioctl(master, _TIOCSIG, number)


def session_leader(master: int) -> int:
    """Return the pid, in the caller's pid namespace, of the leader of the terminal's session. 0 if there is no
    session.
    """
    try:
        (pid,) = struct.unpack("i", fcntl.ioctl(master, _TIOCGSID, bytes(4)))
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EIO):
            return 0
        raise
    return int(pid)


def modes(master: int) -> Modes:
    """Return the modes of the terminal `master`. The kernel returns the modes of the slave (pty(7))."""
    numbers, characters = attributes(master)
    signs = (_character(characters[place]) for place in (termios.VINTR, termios.VQUIT, termios.VSUSP))
    return Modes(numbers[_IFLAG], numbers[_OFLAG], numbers[_LFLAG], *signs)


def hold_output_raw(master: int) -> None:
    """Clear OPOST, and lock it (TIOCSLCKTRMIOS) so that no program can set it until `release_output`.

    Affects all output that is written afterwards. The lock needs CAP_SYS_ADMIN. Without that capability OPOST stays
    unlocked, and a shell sets OPOST again after a job that was killed by a signal.
    """
    _set_output_processing(master, on=False)
    with contextlib.suppress(PermissionError):
        fcntl.ioctl(master, termios.TIOCSLCKTRMIOS, _LOCK.pack(0, termios.OPOST, 0, 0, 0, b""))


def release_output(master: int) -> None:
    """Undo `hold_output_raw`: set OPOST and let programs change it again."""
    with contextlib.suppress(PermissionError):
        fcntl.ioctl(master, termios.TIOCSLCKTRMIOS, _LOCK.pack(0, 0, 0, 0, 0, b""))
    _set_output_processing(master, on=True)


def _set_output_processing(master: int, *, on: bool) -> None:
    numbers, characters = attributes(master)
    if bool(numbers[_OFLAG] & termios.OPOST) is not on:
        numbers[_OFLAG] ^= termios.OPOST
        set_attributes(master, numbers, characters)


def window_size(fd: int) -> tuple[int, int]:
    """Return the rows and columns of the terminal `fd`."""
    rows, cols, _, _ = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
    return rows, cols


def set_window_size(fd: int, rows: int, cols: int) -> None:
    """Set the rows and columns of the terminal. A change sends SIGWINCH to the foreground process group."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def unread_bytes(fd: int) -> int:
    """Return how many bytes can be read without waiting from the pipe or terminal `fd` (FIONREAD)."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def read_now(fd: int, limit: int) -> bytes:
    """Read at most `limit` bytes from the non-blocking `fd`. Return b"" if no bytes wait or the terminal has hung
    up.
    """
    try:
        return os.read(fd, limit)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EIO):
            raise
        return b""


def wait_briefly(fd: int, patience_s: float) -> bool:
    """Wait, by polling in a loop, until the terminal `fd` has bytes to read. Return False after `patience_s` seconds.

    The loop keeps the processor busy. It is faster than a blocking read or poll, which sleep until a worker of the
    kernel has moved the written bytes (tty_buffer_flush_work): an idle processor may wake up slowly, above all in
    virtual machines.
    """
    count = array.array("i", [0])
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.ioctl(fd, termios.FIONREAD, count)
        except OSError:  # the terminal has hung up: the caller's read will report that
            return True
        if count[0]:
            return True
        os.sched_yield()
        if time.monotonic() > until:
            return False


def _character(value: bytes | int) -> int | None:
    number = value if isinstance(value, int) else value[0]
    return number or None  # _POSIX_VDISABLE is 0 on Linux


def attributes(fd: int) -> tuple[list[int], list[bytes | int]]:
    """Return the result of tcgetattr in two parts: the numbers (four flag words, two speeds) and the control
    characters.
    """
    *numbers, characters = termios.tcgetattr(fd)
    if not isinstance(characters, list):
        raise TypeError("tcgetattr returned no list of control characters")
    return [number for number in numbers if isinstance(number, int)], characters


def set_attributes(fd: int, numbers: list[int], characters: list[bytes | int]) -> None:
    """Set attributes in the form that `attributes` returns, with effect at once (TCSANOW)."""
    attributes: list[int | list[bytes | int]] = [*numbers, characters]
    termios.tcsetattr(fd, termios.TCSANOW, attributes)


def is_exclusive(terminal: int) -> bool:
    """Return True if nobody may open the terminal (TIOCEXCL). Raises OSError if it is none."""
    return fcntl.ioctl(terminal, _TIOCGEXCL, bytes(4)) != bytes(4)


def make_exclusive(terminal: int) -> None:
    """Let nobody open the terminal. Raises OSError."""
    fcntl.ioctl(terminal, termios.TIOCEXCL)
