"""A terminal put aside with a capture, and taken out for a restored session: the ring, and the command in flight.

The files are those of a session's own folder, which the next daemon would find: a restored session is adopted like one
whose daemon has died.
"""

import shutil
from pathlib import Path

from shellwrap.ring import copy_ring
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
    copy_ring(str(folder / RING), str(session_folder / RING))
    shutil.copyfile(folder / EXEC, session_folder / EXEC)
    (session_folder / EXEC).chmod(0o600)
