"""The steps of the transactions by name, so that each can be stopped at: a test kills something there, and looks.

`WAYPOINT_PAUSE_AT=STEP:FOLDER` in the daemon's environment makes it stop at the step: it opens the FIFO FOLDER/reached
for writing, and goes on once FOLDER/go was opened for writing and closed.
"""

from enum import StrEnum
from pathlib import Path


class Step(StrEnum):
    """Each is passed when what it says is done."""

    PREPARED = "prepared"  # a capture's folders are there, the dirty data is written out
    FROZEN = "frozen"
    DRAINED = "drained"  # the terminal is empty, its ring is copied
    SEALED = "sealed"  # the files are snapshot
    DUMPED = "dumped"
    THAWED = "thawed"
    RECORDED = "recorded"  # the capture and its names are on record
    RESERVED = "reserved"  # a restore: the branch is spoken for
    GROUNDED = "grounded"  # the files are there to be mounted
    RESTORED = "restored"  # the processes live
    CONFIRMED = "confirmed"  # the session is on record, for everybody to see


class _Stop:
    step = ""
    folder = Path()


_stop = _Stop()


def arm(text: str) -> None:
    """`STEP:FOLDER`, or nothing. Raises ValueError for an unknown step."""
    step, _, folder = text.partition(":")
    _stop.step, _stop.folder = (Step(step), Path(folder)) if text else ("", Path())


def reach(step: Step) -> None:
    """Stop here if this is the step to stop at. Blocks: to be called in a thread, or where everything may stand."""
    if step == _stop.step:
        (_stop.folder / "reached").write_text(step)
        (_stop.folder / "go").read_text()
