"""Making a capture of an ended session: its upper tree is sealed (made read-only) and becomes the branch's new tip. The
cost does not depend on the number of files.

The order is: the caller ends all processes; the tree is sealed; the capture is recorded. After a crash in between, the
branch is still recorded as live although its session is gone, and the next daemon repeats the steps.
"""

import errno
import os
import time
from typing import NamedTuple

import msgspec

from waypoint.capture.layers.shell import last_prompt
from waypoint.capture.left_status import read_status
from waypoint.model.conditions import Degradation
from waypoint.model.ids import new_id
from waypoint.model.paths import RUN_FOLDER
from waypoint.model.records import Capture, EndReason, FilesLayer, LiveRow, Ref, ShellLayer, layers_of
from waypoint.records.names import Names
from waypoint.records.reading import Reader
from waypoint.upper import layout
from waypoint.upper.contract import Pool

EXIT_FILE = f"{RUN_FOLDER}/exit"


class FinalShellState(NamedTuple):
    """The last state of the shell of a session that is stopped, if the shell has reported it. `degraded`: lines about
    lost state.
    """

    shell: ShellLayer | None = None
    degraded: tuple[Degradation, ...] = ()


NO_FINAL_STATE = FinalShellState()


def seal(pool: Pool, names: Names, row: LiveRow, reason: EndReason, last: FinalShellState) -> Capture:
    """Seal the tree of the ended session `row`, which must not be mounted anywhere, and record its capture as the
    branch's tip. May be called again after a failure (disk full).
    """
    status = read_exit_status(pool.path(row.tree))
    shell = last.shell or last_prompt(pool.path(row.tree))
    pool.seal(row.tree)
    with names.change("end") as change:
        if row not in change.live():  # an earlier call has recorded the capture; two captures must not share a tree
            return change.capture(_tip_of(change.ref(row.branch))[0])
        sealed = Capture(
            id=new_id(),
            branch=row.branch,
            parents=[],
            created=time.time(),
            tier="files",
            layers=layers_of(FilesLayer(tree=row.tree), shell),
            degraded=list(last.degraded),
            setting=row.setting,
            reason="exited" if reason == "crashed" and status is not None else reason,
            exit=status,
        )
        capture = placed(change, sealed)
        change.add(capture)
        change.advance(row.branch, capture.id)
        change.forget(row)
    return capture


def placed(names: Reader, taken: Capture) -> Capture:
    """Return the capture `taken` as it is to be recorded, with the tip of its branch as its parent."""
    ref = names.ref(taken.branch)
    created = ref.created if ref is not None else 0.0
    return msgspec.structs.replace(taken, parents=_tip_of(ref), branch_created=created)


def _tip_of(ref: Ref | None) -> list[str]:
    return [ref.capture] if ref is not None and ref.capture else []


def read_exit_status(tree: str) -> int | None:
    """Return the shell's exit status from the session's files in `tree`; None without one, or if the disk fails."""
    try:
        folder = os.open(layout.upper_of(tree), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise
        return None
    try:
        return read_status(folder, EXIT_FILE)
    finally:
        os.close(folder)
