"""A terminal put aside with a capture, and taken out for a restored session: the ring, and the command in flight.

The files are those of a session's own folder, which the next daemon would find: a restored session is adopted like one
whose daemon has died.
"""

import os
import shutil
from pathlib import Path

from shellwrap.ring import HEADER_SIZE
from waypoint.session.terminal.terminal import Terminal

RING = "ring"
EXEC = "exec.json"


def put_aside(terminal: Terminal, session_folder: Path, folder: Path) -> int:
    """Write copies into `folder`; bytes on disk. The terminal must stand still. Raises OSError."""
    size = terminal.ring.save(str(folder / RING), terminal.reader.spill)
    shutil.copyfile(session_folder / EXEC, folder / EXEC)
    return size


def take_out(folder: Path, session_folder: Path) -> None:
    """Put what was put aside into the folder of a session to be. Raises OSError, also if there is no room for it."""
    for name in (RING, EXEC):
        shutil.copyfile(folder / name, session_folder / name)
        (session_folder / name).chmod(0o600)
    fd = os.open(session_folder / RING, os.O_RDWR | os.O_CLOEXEC)
    try:  # it will be written to through a mapping: the disk must not turn out to be full then
        os.posix_fallocate(fd, HEADER_SIZE, os.fstat(fd).st_size - HEADER_SIZE)
    finally:
        os.close(fd)
