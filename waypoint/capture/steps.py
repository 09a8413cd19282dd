"""The steps of the transactions by name, so that each can be stopped at: a test kills something there, and looks.

`WAYPOINT_PAUSE_AT=FOLDER` in the daemon's environment makes it stop, once, at each step for which there is a FIFO
`FOLDER/STEP`: it takes the FIFO's name away, opens it for writing, and goes on when the FIFO `FOLDER/go` was opened for
writing and closed.
"""

import contextlib
import os
import select
from enum import StrEnum
from pathlib import Path

PATIENCE_S = 60.0


class Step(StrEnum):
    """Each is passed when what it says is done."""

    PREPARED = "prepared"  # a capture's folders are there, the dirty data is written out
    FROZEN = "frozen"
    DRAINED = "drained"  # the terminal is empty
    DUMPED = "dumped"
    SEALED = "sealed"  # the files are snapshot, what was in memory alone is copied
    THAWED = "thawed"
    RECORDED = "recorded"  # the capture and its names are on record
    RESERVED = "reserved"  # a restore: the branch is spoken for
    GROUNDED = "grounded"  # the files are there to be mounted
    RESTORED = "restored"  # the processes live
    CONFIRMED = "confirmed"  # the session is on record, for everybody to see
    REWOUND = "rewound"  # a restore of the files alone: those of the live session are back
    ENDED = "ended"  # an end: its processes are gone
    CONCLUDED = "concluded"  # what becomes of its files is done, and on record


class _Stops:
    folder: Path | None = None


_stops = _Stops()


def arm(folder: str) -> None:
    """Stop at the steps that `folder` names from now on; empty: at none."""
    _stops.folder = Path(folder) if folder else None


def reach(step: Step) -> None:
    """Stop here if this is a step to stop at. Blocks: to be called in a thread, or where everything may stand.

    For PATIENCE_S seconds at most: who stopped us may have died of it.
    """
    if _stops.folder is not None:
        with contextlib.suppress(FileNotFoundError):  # none, or another thread has come first
            taken = (_stops.folder / step).rename(_stops.folder / f".{step}")
            taken.write_text(step)
            go = os.open(_stops.folder / "go", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            select.select([go], [], [], PATIENCE_S)
            os.close(go)
