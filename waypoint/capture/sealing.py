"""A capture of an ended session: the session's upper tree is sealed, and the capture is the new tip of its branch.

The cost does not depend on how much the session wrote. Steps, in order: the caller has ended all processes; the tree is
sealed; the capture is put on record. A crash between two steps leaves a branch that is recorded as live without a
session: the next daemon repeats the steps for it when it starts.
"""

import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from waypoint.capture.layers.shell import NOT_WRITTEN, LastPrompt, last_prompt
from waypoint.capture.left_status import read_left, read_status
from waypoint.model.details.process_facts import first_few
from waypoint.model.ids import new_id
from waypoint.model.paths import RUN_FOLDER
from waypoint.model.records import Capture, EndReason, FilesLayer, Layers, LiveRow, Ref, ShellLayer
from waypoint.store.change import Change
from waypoint.store.names import Names
from waypoint.upper import layout
from waypoint.upper.contract import Pool

EXIT_FILE = f"{RUN_FOLDER}/exit"
_LEFT_FILE = f"{RUN_FOLDER}/left"


T = TypeVar("T")


class LastWords(NamedTuple):
    """Of a session that is stopped: the state for which its shell was asked, None if it was not, or has given none; in
    words, what is lost; and the programs that end with it, as far as the daemon has seen them.
    """

    shell: ShellLayer | None = None
    degraded: tuple[str, ...] = ()
    programs: Sequence[str] = ()


NO_WORDS = LastWords()


def seal(pool: Pool, names: Names, row: LiveRow, reason: EndReason, last: LastWords) -> Capture:
    """Seal the tree of the ended session `row` and record the capture of it as the branch's tip. Returns the capture.

    Nothing may have the tree mounted any more. Raises Failed if the record cannot be written (disk full); the tree may
    be sealed by then, and `seal` may be called again.
    """
    status = read_exit_status(pool.path(row.tree))
    programs = last.programs or _in_tree(pool.path(row.tree), lambda folder: read_left(folder, _LEFT_FILE))
    left = LastPrompt(last.shell) if last.shell else last_prompt(pool.path(row.tree))
    pool.seal(row.tree)
    with names.change("end") as change:
        if row not in change.live():  # the capture was recorded by an earlier call: no two may have one tree
            return change.capture(_tip_of(change.ref(row.branch))[0])
        sealed = Capture(
            id=new_id(),
            branch=row.branch,
            parents=[],
            created=time.time(),
            tier="files",
            layers=Layers(files=FilesLayer(tree=row.tree), shell=left.layer),
            degraded=[*([NOT_WRITTEN] if left.is_too_large else last.degraded), *_told_ended(programs or ())],
            setting=row.setting,
            reason="exited" if reason == "crashed" and status is not None else reason,
            exit=status,
        )
        capture = placed(change, sealed)
        change.add(capture)
        change.advance(row.branch, capture.id)
        change.forget(row)
    return capture


def placed(change: Change, taken: Capture) -> Capture:
    """The capture `taken` with its place in the graph, for the record: it goes on from the tip of its branch."""
    ref = change.ref(taken.branch)
    created = ref.created if ref is not None else 0.0
    return msgspec.structs.replace(taken, parents=_tip_of(ref), branch_created=created)


def _tip_of(ref: Ref | None) -> list[str]:
    return [ref.capture] if ref is not None and ref.capture else []


def read_exit_status(tree: str) -> int | None:
    """The shell's exit status, which the wrapper left in the session's files below `tree`; None if there is none, or
    the disk has failed there.
    """
    return _in_tree(tree, lambda folder: read_status(folder, EXIT_FILE))


def _told_ended(programs: Sequence[str]) -> list[str]:
    """In words, which programs have ended with the session, and what would have kept them."""
    if not programs:
        return []
    count = "1 program" if len(programs) == 1 else f"{len(programs)} programs"
    kept = "'waypoint checkpoint NAME --park' ends a session with its programs kept"
    return [f"{count} ended with the session: {first_few(programs)} ({kept})"]


def _in_tree(tree: str, read: Callable[[int], T]) -> T | None:
    """What `read` finds in the session's files below `tree`; None if there are none, or the disk has failed there."""
    try:
        folder = os.open(layout.upper_of(tree), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise
        return None
    try:
        return read(folder)
    finally:
        os.close(folder)
