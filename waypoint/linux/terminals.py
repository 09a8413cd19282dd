"""Pseudo-terminals from the side of the master: foreground group, modes, window size (tty_ioctl(4), pty(7))."""

import array
import contextlib
import errno
import fcntl
import os
import struct
import termios
import time
from collections.abc import Iterator
from typing import NamedTuple

# The kernel's struct termios: four words of flags, the line discipline, 19 characters.
_LOCK = struct.Struct("=4IB19s")
_IFLAG, _OFLAG, _LFLAG = 0, 1, 3
_TIOCGPTPEER = 0x5441  # asm-generic/ioctls.h; termios has it from Python 3.13 on
_QUEUE_BYTES = 4096  # what a terminal keeps for its reader (n_tty.c)
# What makes other bytes of typed ones.
_CHANGES_INPUT = termios.ISTRIP | termios.INLCR | termios.IGNCR | termios.ICRNL | termios.IXANY | termios.PARMRK
_ACTS_ON_INPUT = termios.ECHO | termios.ECHONL | termios.ISIG | termios.IEXTEN


class Modes(NamedTuple):
    """The flag words of termios(3), and the characters that raise signals (None where switched off)."""

    iflag: int
    oflag: int
    lflag: int
    interrupt: int | None
    quit: int | None
    suspend: int | None


def open_pair(rows: int = 24, cols: int = 80) -> tuple[int, int]:
    """A new pair (master, slave); the master does not block. Both close on exec."""
    master, slave = os.openpty()
    os.set_blocking(master, False)
    set_window_size(master, rows, cols)
    return master, slave


def foreground_group(master: int) -> int:
    """The foreground process group, as a pid in the caller's pid namespace; 0 if there is none (TIOCGPGRP on the
    master).
    """
    try:
        return os.tcgetpgrp(master)
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EIO):  # no session has it as its terminal (any more)
            return 0
        raise


def modes(master: int) -> Modes:
    """The modes of the terminal behind `master` (an ioctl on a master is about its slave)."""
    numbers, characters = _read_termios(master)
    signs = (_character(characters[place]) for place in (termios.VINTR, termios.VQUIT, termios.VSUSP))
    return Modes(numbers[_IFLAG], numbers[_OFLAG], numbers[_LFLAG], *signs)


def hold_output_raw(master: int) -> None:
    """Clear OPOST, and lock it if we may (TIOCSLCKTRMIOS): no program can set it until `release_output`.

    Takes effect at once; output that was already written stays as it is. Without the lock (it needs CAP_SYS_ADMIN) a
    shell sets OPOST itself after a job that died of a signal.
    """
    _set_output_processing(master, on=False)
    with contextlib.suppress(PermissionError):
        fcntl.ioctl(master, termios.TIOCSLCKTRMIOS, _LOCK.pack(0, termios.OPOST, 0, 0, 0, b""))


def release_output(master: int) -> None:
    """Set OPOST, and let programs change it again."""
    with contextlib.suppress(PermissionError):
        fcntl.ioctl(master, termios.TIOCSLCKTRMIOS, _LOCK.pack(0, 0, 0, 0, 0, b""))
    _set_output_processing(master, on=True)


def _set_output_processing(master: int, *, on: bool) -> None:
    numbers, characters = _read_termios(master)
    if bool(numbers[_OFLAG] & termios.OPOST) is not on:
        numbers[_OFLAG] ^= termios.OPOST
        _write_termios(master, numbers, characters)


def window_size(fd: int) -> tuple[int, int]:
    """Rows and columns."""
    rows, cols, _, _ = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
    return rows, cols


def set_window_size(fd: int, rows: int, cols: int) -> None:
    """Set it; if it differs the kernel sends SIGWINCH to the foreground group."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def unread_bytes(fd: int) -> int:
    """How many bytes wait to be read from a pipe or terminal (FIONREAD)."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def read_now(fd: int, limit: int) -> bytes:
    """What can be read at once, at most `limit` bytes; empty if nothing can, or the terminal has hung up."""
    try:
        return os.read(fd, limit)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EIO):
            raise
        return b""


def take_typed_ahead(master: int) -> bytes:
    """Take away what was typed and has not been read, also a line that is not finished. Nobody may read meanwhile.

    Where ^D ended a line, that character is in it.
    """
    try:
        slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # hung up
        return b""
    try:
        numbers, characters = _read_termios(slave)
        if not numbers[_LFLAG] & termios.ICANON:
            return b"".join(iter(lambda: read_now(slave, _QUEUE_BYTES), b""))
        lines = b"".join(_read_lines(slave, characters))
        raw = numbers.copy()
        raw[_LFLAG] ^= termios.ICANON
        _write_termios(slave, raw, characters)  # it gives what is not finished, too
        rest = read_now(slave, _QUEUE_BYTES)
        _write_termios(slave, numbers, characters)
        return lines + rest
    finally:
        os.close(slave)


def _read_lines(slave: int, characters: list[bytes | int]) -> Iterator[bytes]:
    """Those that are whole; when there is none any more, what was typed has gone through the line discipline."""
    special = [bytes([_character(characters[place]) or 0]) for place in (termios.VEOF, termios.VEOL, termios.VEOL2)]
    ends = (b"\n", *(character for character in special[1:] if character != b"\0"))
    for _ in range(_QUEUE_BYTES):
        try:
            line = os.read(slave, _QUEUE_BYTES)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EIO):
                raise
            return
        yield line if line.endswith(ends) else line + special[0]


def type_ahead(master: int, data: bytes) -> None:
    """Put back what `take_typed_ahead` took: nothing of it is echoed, or acts. Nobody may change the modes meanwhile.

    By TIOCSTI, which has worked on a byte when it returns; to the master it would be the kernel's worker, some time.
    """
    slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        numbers, characters = _read_termios(slave)
        quiet, plain = numbers.copy(), characters.copy()
        quiet[_IFLAG] &= ~_CHANGES_INPUT
        quiet[_LFLAG] &= ~_ACTS_ON_INPUT
        plain[termios.VERASE] = plain[termios.VKILL] = b"\0"
        _write_termios(slave, quiet, plain)
        try:
            for byte in data:
                fcntl.ioctl(slave, termios.TIOCSTI, bytes([byte]))
        finally:
            _write_termios(slave, numbers, characters)
    finally:
        os.close(slave)


def wait_briefly(fd: int, patience_s: float) -> bool:
    """True as soon as something waits to be read from a terminal; False after `patience_s`. Burns the processor.

    A read of an empty terminal, and a poll of one, sleep until the kernel's worker has passed on what was written
    (tty_buffer_flush_work); where an idle processor wakes up slowly, as in virtual machines, that takes longer than
    to look again and again.
    """
    count = array.array("i", [0])
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.ioctl(fd, termios.FIONREAD, count)
        except OSError:  # hung up: the read tells
            return True
        if count[0]:
            return True
        os.sched_yield()
        if time.monotonic() > until:
            return False


def _character(value: bytes | int) -> int | None:
    number = value if isinstance(value, int) else value[0]
    return number or None  # _POSIX_VDISABLE is 0 on Linux


def _read_termios(fd: int) -> tuple[list[int], list[bytes | int]]:
    """The numbers of tcgetattr, four words of flags and two speeds, and the characters."""
    *numbers, characters = termios.tcgetattr(fd)
    if not isinstance(characters, list):
        raise TypeError("tcgetattr gave something else than termios(3) says")
    return [number for number in numbers if isinstance(number, int)], characters


def _write_termios(fd: int, numbers: list[int], characters: list[bytes | int]) -> None:
    """Takes effect at once."""
    attributes: list[int | list[bytes | int]] = [*numbers, characters]
    termios.tcsetattr(fd, termios.TCSANOW, attributes)
