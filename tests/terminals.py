"""Pseudo-terminals for tests."""

import os

from waypoint.linux.tty import terminals


def open_pair() -> tuple[int, int]:
    """A new pseudo-terminal of 24 rows and 80 columns: (master, slave). The master is non-blocking."""
    master, slave = os.openpty()
    os.set_blocking(master, False)
    terminals.set_window_size(master, 24, 80)
    return master, slave
