"""The single steps of openpty(3), for a devpts instance that is not mounted at /dev/pts (pty(7), ioctl_tty(2))."""

import errno
import fcntl
import os
import stat
import struct
import termios

_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
_PTMX = os.makedev(5, 2)  # the device number of `ptmx` in every devpts


def check_master(fd: int) -> None:
    """Raise OSError ENOTTY if `fd` is not the master of a terminal. Call this for a descriptor from another process."""
    facts = os.fstat(fd)
    if not stat.S_ISCHR(facts.st_mode) or facts.st_rdev != _PTMX:
        raise OSError(errno.ENOTTY, "is not the master of a terminal", f"fd {fd}")


def unlock_slave(master: int) -> None:
    """Unlock the slave of the terminal `master`, so that it can be opened."""
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))


def open_slave(master: int) -> int:
    """Open the slave of the terminal `master` without using a path. The slave does not become the caller's controlling
    terminal.
    """
    return fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def set_size(fd: int, rows: int, cols: int) -> None:
    """Set the window size of the terminal `fd` (master or slave). A change sends SIGWINCH to the foreground group."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def take_as_controlling(slave: int) -> None:
    """Make `slave` the controlling terminal of the caller, which must be a session leader without one (TIOCSCTTY)."""
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
