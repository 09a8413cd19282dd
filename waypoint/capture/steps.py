"""The named steps of the transactions. A test can stop the daemon at a step, kill a process and see what is left.

`WAYPOINT_PAUSE_AT=FOLDER` in the daemon's environment makes the daemon stop, once, at each step for which there is a
FIFO `FOLDER/STEP`. The daemon renames this FIFO to `.STEP`, writes its pid into it, and goes on when the test has
opened the FIFO `FOLDER/go-STEP` for writing and closed it. If the test has written the number of an error there
(errno(3)), the daemon meets that error at the step. Two threads may stand at two steps at a time. The programs that
work for the daemon on the store and on files do the same at steps of theirs.
"""

import contextlib
import os
import select
from enum import StrEnum
from pathlib import Path

PATIENCE_S = 60.0


class Step(StrEnum):
    """A step is reached when the work that its comment describes is done."""

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
    REMOVING = "removing"  # what `gc` removes is doomed; before each removal from the disk
    CONCLUDED = "concluded"  # the ended session's files are sealed or removed, and the outcome is on record


class SettleStep(StrEnum):
    """The steps of images that come from memory to the disk (capture/in_memory)."""

    ONE_COPIED = "image-copied"  # one more of them
    IN_PLACE = "images-in-place"  # the disk has all of them, and memory, too


class CopyStep(StrEnum):
    """The steps of copying files into a session and out of it (service/carrying)."""

    TAKEN = "copy-taken"  # one more part of what comes is in the session
    READ = "copy-read"  # one more part of what goes is read, and not yet sent


class StoreStep(StrEnum):
    """The steps of what is done with captures in the store, besides those of writing to it (store/content/write_steps).
    In the daemon, or in a program of its own.
    """

    BROUGHT_ONE = "brought-one"  # one more part of a capture has come back from the store, beside its place
    BROUGHT = "brought"  # all parts have
    HOT_IN_PLACE = "hot-in-place"  # all but its files is in its place
    FILES_GONE = "files-gone"  # of a capture that is evicted, or removed, the files are gone
    INSPECTED = "inspected"  # an export is found to be one
    SENT_ONE = "sent-one"  # one more piece of an export is on its way
    ATTACHED_ONE = "attached-one"  # one more layer that comes in is on the disk, beside its place
    SHARED = "shared"  # a capture to which layers are attached has all that the one before has


class _Stops:
    folder: Path | None = None


_stops = _Stops()


def arm(folder: str) -> None:
    """From now on, stop at the steps for which there are FIFOs in `folder`; "": stop at no step."""
    _stops.folder = Path(folder) if folder else None


def armed() -> str:
    """The folder that `arm` was given."""
    return str(_stops.folder or "")


def reach(step: StrEnum) -> None:
    """Stop here if a test has asked for it. Blocks, so it must not be called in the event loop.

    Stops for at most PATIENCE_S seconds: the test may have died. Raises OSError if the test has asked for that.
    """
    if _stops.folder is not None:
        with contextlib.suppress(FileNotFoundError):  # no FIFO for this step, or another thread has renamed it
            taken = (_stops.folder / step).rename(_stops.folder / f".{step}")
            go = os.open(_stops.folder / f"go-{step}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            taken.write_text(str(os.getpid()))
            gone_on = select.poll()
            gone_on.register(go, select.POLLIN)
            gone_on.poll(1000 * PATIENCE_S)
            number = int(os.read(go, 16) or b"0")
            os.close(go)
            if number:
                raise OSError(number, os.strerror(number))
