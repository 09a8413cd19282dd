"""Opening a pseudo-terminal pair by hand, in a devpts instance that need not be the one at /dev/pts (pty(7),
ioctl_tty(2)).
"""

import fcntl
import struct
import termios

_TIOCSPTLCK = 0x40045431
_TIOCGPTN = 0x80045430


def unlock_slave(master: int) -> int:
    """Unlock the slave of `master`; return its number in the devpts instance."""
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
    number: int = struct.unpack("I", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))[0]
    return number


def set_size(fd: int, rows: int, cols: int) -> None:
    """Set the window size of either side; the foreground process group gets SIGWINCH if it changed."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def take_as_controlling(slave: int) -> None:
    """Make it the controlling terminal of the caller, a session's leader that has none (TIOCSCTTY)."""
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
