"""The size of a terminal. A module of its own, so that `waypoint shell -d` loads little and starts fast."""

import os

DEFAULT_SIZE = (24, 80)


def terminal_size(fd: int) -> tuple[int, int]:
    """Rows and columns of the terminal `fd`; DEFAULT_SIZE if `fd` is no terminal or its size is unknown (0 x 0)."""
    try:
        size = os.get_terminal_size(fd)
    except OSError:
        return DEFAULT_SIZE
    return (size.lines, size.columns) if size.lines and size.columns else DEFAULT_SIZE
