"""What a session leaves behind becomes a capture: its upper tree is sealed and is the new tip of its branch.

Costs the same whatever the session wrote. Steps, in order: no process is left; the tree is sealed; names point to it. A
crash between leaves the branch marked as live without a session, which the next start of the daemon ends by the same
steps.
"""

import os
import time

from waypoint.capture.left_status import read_status
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, EndReason, LiveRow
from waypoint.store.names import Names
from waypoint.upper.contract import Pool

EXIT_FILE = "run/waypoint/exit"


def seal(pool: Pool, names: Names, row: LiveRow, reason: EndReason) -> Capture:
    """Seal the tree of the ended session `row`. Nothing may have it mounted any more."""
    status = read_exit_status(pool.path(row.tree))
    pool.seal(row.tree)
    capture = Capture(
        id=new_id(),
        branch=row.branch,
        parent=row.parent,
        created=time.time(),
        tier="files",
        tree=row.tree,
        setting=row.setting,
        reason="exited" if reason == "crashed" and status is not None else reason,
        exit=status,
    )
    names.end(row, capture)
    return capture


def discard(pool: Pool, names: Names, row: LiveRow) -> None:
    """Forget the ended session `row` and what it wrote."""
    names.abandon(row)
    pool.remove(row.tree)


def read_exit_status(tree: str) -> int | None:
    """The status that the wrapper left in the session's files; None if it did not get to write one."""
    try:
        folder = os.open(f"{tree}/m0/upper", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return read_status(folder, EXIT_FILE)
    finally:
        os.close(folder)
