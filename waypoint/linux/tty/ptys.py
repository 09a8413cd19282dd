"""The steps of openpty(3) one by one, for a devpts instance that is not at /dev/pts (pty(7), ioctl_tty(2))."""

import fcntl
import struct
import termios

_TIOCSPTLCK = 0x40045431
_TIOCGPTN = 0x80045430


def unlock_slave(master: int) -> int:
    """Unlock the slave of the terminal `master`; return the slave's number in its devpts instance."""
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
    number: int = struct.unpack("I", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))[0]
    return number


def set_size(fd: int, rows: int, cols: int) -> None:
    """Set the window size of the terminal `fd` (master or slave). A change sends SIGWINCH to the foreground group."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def take_as_controlling(slave: int) -> None:
    """Make `slave` the controlling terminal of the caller, which must be a session leader without one (TIOCSCTTY)."""
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
