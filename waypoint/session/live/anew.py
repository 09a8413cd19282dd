"""Writing the runtime folder of a live session anew, if somebody has removed it: without it no daemon finds the session
again. Everything in it is in the memory of the daemon that goes.
"""

import os
from pathlib import Path

from waypoint.model.paths import COMMAND_FILE, RING_FILE
from waypoint.session.live import record
from waypoint.session.live.session import LiveSession


def write_anew(live: LiveSession, sessions: Path) -> None:
    """Write the folder of `live` below `sessions`, unless its record is there. To be called when nothing is done with
    the session any more, right before `release`.

    Raises OSError; then the folder may be incomplete, and the next daemon ends the session.
    """
    folder = sessions / live.record.row.session
    if (folder / record.RECORD).exists():
        return
    record.remove_folder(sessions, folder.name)
    folder.mkdir(mode=0o700, parents=True)
    size = live.terminal.ring.save(str(folder / RING_FILE), live.terminal.reader.spill)
    with open(folder / RING_FILE, "r+b") as ring:
        os.posix_fallocate(ring.fileno(), 0, max(size, os.fstat(ring.fileno()).st_size))
    live.shell.file.move(str(folder / COMMAND_FILE))
    record.save(folder, live.record)  # last: by it the next daemon knows that the rest is there
