"""Named steps of the transactions. A test can stop the daemon at a step, kill a process and examine what is left.

With `WAYPOINT_PAUSE_AT=FOLDER` in its environment, the daemon stops once at each step with a FIFO `FOLDER/STEP`. It
renames this FIFO to `.STEP`, writes the step's name into it, and goes on when the test has opened the FIFO
`FOLDER/go-STEP` for writing and closed it. Two threads can stand at two steps at a time.
"""

import asyncio
import contextlib
import os
import select
from enum import StrEnum
from pathlib import Path

PATIENCE_S = 60.0


class Step(StrEnum):
    PREPARED = "prepared"  # a capture's folders exist, the session's dirty data is written to disk
    FROZEN = "frozen"
    DRAINED = "drained"  # the terminal is empty
    DUMPED = "dumped"
    SEALED = "sealed"  # the snapshot of the files exists, the files of /dev/shm are copied
    THAWED = "thawed"
    RECORDED = "recorded"  # the capture and its names are on record
    RESERVED = "reserved"  # the start of a session on the branch is on record
    GROUNDED = "grounded"  # the new session's upper tree and cgroup exist
    RESTORED = "restored"  # the new session's processes live
    CONFIRMED = "confirmed"  # the new session is on record as live
    REWOUND = "rewound"  # a restore of the files alone: the live session has the capture's files
    ENDED = "ended"  # the ending session's processes are gone
    REMOVING = "removing"  # the captures that `gc` removes are off the record; before each removal from the disk
    CONCLUDED = "concluded"  # the ended session's files are sealed or removed, and the outcome is on record


class _Stops:
    folder: Path | None = None


_stops = _Stops()


def arm(folder: str) -> None:
    """Stop at the steps with FIFOs in `folder`; "": at no step."""
    _stops.folder = Path(folder) if folder else None


async def reach_in_loop(step: Step) -> None:
    """As `reach`, for callers in the event loop."""
    if _stops.folder is not None:  # without a test, no thread is needed
        await asyncio.to_thread(reach, step)


def reach(step: Step) -> None:
    """Stop here if a test has asked for it, at most PATIENCE_S: the test may have died. Blocks."""
    if _stops.folder is not None:
        with contextlib.suppress(FileNotFoundError):  # no FIFO for this step, or another thread has renamed it
            taken = (_stops.folder / step).rename(_stops.folder / f".{step}")
            go = os.open(_stops.folder / f"go-{step}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            taken.write_text(step)
            select.select([go], [], [], PATIENCE_S)
            os.close(go)
