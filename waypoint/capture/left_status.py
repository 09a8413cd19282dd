"""What a script of Waypoint's in the session has left: an exit status, in a file or, on a full disk, as the target of a
link; and what ran on when the shell had ended.
"""

import contextlib
import os
from pathlib import Path

from waypoint.linux.storage import beneath
from waypoint.model.late_pattern import late_pattern

_MAX_BYTES = 16
_MAX_LINES_BYTES = 1 << 17
_STAT = late_pattern(r"\d+ \((.*)\) ([^ZX]) 1 .*")  # a child of pid 1 that has not ended (proc_pid_stat(5))


def read_status(folder: int, path: str) -> int | None:
    """The status at `path` below the folder that the descriptor `folder` has open; None if no status was left there.

    The session's user can write at `path`, so no link on the way is followed, and at most _MAX_BYTES are read.
    """
    text = b""
    with contextlib.suppress(OSError):
        text = _read(folder, path, _MAX_BYTES)
    return int(text) & 0xFF if text.isdigit() else None


def read_left(folder: int, path: str) -> list[str]:
    """The names of the programs that ran on when the shell had ended, as pid 1 has left them at `path`."""
    with contextlib.suppress(OSError):
        lines = _read(folder, path, _MAX_LINES_BYTES).decode(errors="replace").splitlines()
        return [found[1] for found in map(_STAT.fullmatch, lines) if found]
    return []


def _read(folder: int, path: str, most_bytes: int) -> bytes:
    parent = beneath.open_beneath(folder, str(Path(path).parent), os.O_PATH | os.O_DIRECTORY)
    name = Path(path).name
    try:
        with contextlib.suppress(OSError):  # EINVAL: no link
            return os.fsencode(os.readlink(name, dir_fd=parent))[:_MAX_BYTES]
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        return os.read(fd, most_bytes).strip()
    finally:
        os.close(fd)
