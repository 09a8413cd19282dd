"""How large the terminal is that a person sits at. Apart from the rest: `shell -d` loads little."""

import os

DEFAULT_SIZE = (24, 80)


def terminal_size(fd: int) -> tuple[int, int]:
    """Rows and columns; DEFAULT_SIZE where the terminal does not know (serial lines, `script` in a pipe: 0 x 0)."""
    try:
        size = os.get_terminal_size(fd)
    except OSError:
        return DEFAULT_SIZE
    return (size.lines, size.columns) if size.lines and size.columns else DEFAULT_SIZE
