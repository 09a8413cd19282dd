"""Reading the exit status that a wrapper script in the session has written: to a file or, if the disk was full, as the
target of a symbolic link.
"""

import contextlib
import os
from pathlib import Path

from waypoint.linux.storage import beneath

_MAX_BYTES = 16


def read_status(folder: int, path: str) -> int | None:
    """Return the status at `path` below the open folder, or None. The session's user can write there, so links in the
    path are not followed, and at most _MAX_BYTES are read.
    """
    text = b""
    with contextlib.suppress(OSError):
        text = _read(folder, path)
    return int(text) & 0xFF if text.isdigit() else None


def _read(folder: int, path: str) -> bytes:
    parent = beneath.open_beneath(folder, str(Path(path).parent), os.O_PATH | os.O_DIRECTORY)
    name = Path(path).name
    try:
        with contextlib.suppress(OSError):  # EINVAL: it is not a link
            return os.fsencode(os.readlink(name, dir_fd=parent))[:_MAX_BYTES]
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        return os.read(fd, _MAX_BYTES).strip()
    finally:
        os.close(fd)
