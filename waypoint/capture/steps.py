"""Named steps of transactions. A test can stop the daemon at a step, kill a process and look at the result.

If `WAYPOINT_PAUSE_AT=FOLDER` is in its environment, the daemon stops once at each step for which a FIFO `FOLDER/STEP`
exists. It renames this FIFO to `.STEP` and writes the step's name into it. It continues when the test has opened the
FIFO `FOLDER/go-STEP` for writing and closed it. Two threads can stop at two steps at the same time.
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
    RECORDED = "recorded"  # the capture and its names are in names.db
    COPIED = "copied"  # of a capture in memory: the copy on the disk is complete
    SWITCHED = "switched"  # the capture has the copy, and is still in memory, too
    RESERVED = "reserved"  # the start of a session on the branch is in names.db
    GROUNDED = "grounded"  # the new session's upper tree and cgroup exist
    STANDING = "standing"  # a standby is complete, and frozen (session/birth/standby.py)
    RESTORED = "restored"  # the new session's processes live
    CONFIRMED = "confirmed"  # the new session is in names.db as live
    REWOUND = "rewound"  # in a restore of the files alone: the live session has the capture's files
    COMPLETED = "completed"  # of a replaced session: its capture has its processes (capture/dumping_later.py)
    ENDED = "ended"  # the ending session's processes are gone
    REMOVING = "removing"  # `gc` has deleted the records of captures; reached before each removal from the disk
    INTENDED = "intended"  # the intent of an undo is in names.db
    CARRIED_OUT = "carried-out"  # the sessions of an undo have ended, or run again
    UNDONE = "undone"  # the undo is in the operation log
    STAGED = "staged"  # of an apply: the new files wait beside their places
    EXCHANGED = "exchanged"  # the machine has all new files, which is not in the operation log yet
    APPLIED = "applied"  # the apply is in the operation log
    CONCLUDED = "concluded"  # the ended session's files are sealed or removed, and the outcome is in names.db


class _Stops:
    folder: Path | None = None


_stops = _Stops()


def arm(folder: str) -> None:
    """Stop at the steps with FIFOs in `folder`; "": at no step."""
    _stops.folder = Path(folder) if folder else None


async def reach_in_loop(step: Step) -> None:
    """Stop here if a test has asked for it, without blocking the event loop."""
    if _stops.folder is not None:  # without a test, no thread is needed
        await asyncio.to_thread(reach, step)


def reach(step: Step) -> None:
    """Stop here if a test has asked for it. Blocks, at most PATIENCE_S, because the test may have died."""
    if _stops.folder is not None:
        with contextlib.suppress(FileNotFoundError):  # no FIFO for this step, or another thread has renamed it
            taken = (_stops.folder / step).rename(_stops.folder / f".{step}")
            go = os.open(_stops.folder / f"go-{step}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            taken.write_text(step)
            select.select([go], [], [], PATIENCE_S)
            os.close(go)
