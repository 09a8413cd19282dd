"""What a session leaves behind becomes a capture: its upper tree is sealed and is the new tip of its branch.

Costs the same whatever the session wrote. Steps, in order: no process is left; the tree is sealed; names point to it. A
crash between leaves the branch marked as live without a session, which the next start of the daemon ends by the same
steps.
"""

import os
import time
from dataclasses import dataclass
from typing import Protocol

from waypoint.capture.left_status import read_status
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, EndReason, FilesLayer, Layers, LiveRow
from waypoint.store.change import Change
from waypoint.store.names import Names
from waypoint.upper.contract import Pool

EXIT_FILE = "run/waypoint/exit"


def seal(pool: Pool, names: Names, row: LiveRow, reason: EndReason) -> Capture:
    """Seal the tree of the ended session `row`. Nothing may have it mounted any more."""
    status = read_exit_status(pool.path(row.tree))
    pool.seal(row.tree)
    with names.change("end") as change:
        capture = Capture(
            id=new_id(),
            branch=row.branch,
            parents=tip_of(change, row.branch),
            created=time.time(),
            tier="files",
            layers=Layers(files=FilesLayer(tree=row.tree)),
            setting=row.setting,
            reason="exited" if reason == "crashed" and status is not None else reason,
            exit=status,
        )
        change.add(capture)
        change.advance(row.branch, capture.id)
        change.forget(row)
    return capture


def tip_of(change: Change, branch: str) -> list[str]:
    """The branch's tip, as the parents of what comes next on it."""
    ref = change.ref(branch)
    return [ref.capture] if ref is not None and ref.capture else []


class Conclusion(Protocol):
    """What becomes of a session that has ended."""

    def conclude(self, pool: Pool, names: Names, row: LiveRow) -> Capture | None:
        """Nothing may have the tree of `row` mounted any more. What is kept of it, if something is."""
        ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """Its files are kept, as the branch's tip."""

    reason: EndReason

    def conclude(self, pool: Pool, names: Names, row: LiveRow) -> Capture | None:
        return seal(pool, names, row, self.reason)


@dataclass(frozen=True, slots=True)
class Discarded:
    """Nothing of it is kept. A branch on which nothing was captured goes with it."""

    def conclude(self, pool: Pool, names: Names, row: LiveRow) -> Capture | None:
        with names.change("discard") as change:
            change.forget(row)
            ref = change.ref(row.branch)
            if ref is not None and ref.kind == "branch" and ref.capture == ref.origin:
                change.put(row.branch, None)
        pool.remove(row.tree)
        return None


@dataclass(frozen=True, slots=True)
class Kept:
    """All of it is in `capture` already, and on record is that it lives no more."""

    capture: Capture

    def conclude(self, pool: Pool, names: Names, row: LiveRow) -> Capture | None:
        pool.remove(row.tree)
        return self.capture


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
