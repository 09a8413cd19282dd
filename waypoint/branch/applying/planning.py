"""The plan of putting a branch's changes onto the machine: which names of which folders get what, and what forbids it.

What the session has *looked at* cannot be known: a program may have read a file long before it writes another in its
place. So a file of the machine counts as changed since if it was changed (ctime) after the branch began on the machine
(`ApplyOrder.since_ns`), however late the session touched it; unless it is what the session has made of it anyway. A
folder counts as changed if anything in it has. Of a folder that stays, only the names that the session has changed are
looked at. What has changed so is replaced if the order has `force`; all else that is refused stays so.
"""

import os
import stat
import time
from contextlib import ExitStack
from typing import NamedTuple

from waypoint.branch.applying.apply_records import Action, ApplyOrder, ApplyPlan, FolderChange, Line
from waypoint.branch.applying.choice import Choice
from waypoint.branch.applying.judging import BothSides, PlaceJudge
from waypoint.branch.applying.own_changes import Known
from waypoint.launch.ground.base import is_below
from waypoint.linux.calls.handles import handle_of
from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.storage.filesystem import is_locked
from waypoint.model.errors import StateConflict, UsageProblem
from waypoint.upper.comparing.presence import has_entry
from waypoint.upper.comparing.stack import below
from waypoint.upper.writing.content import Roots, ShownEntry, above, all_in, opened, opened_machine
from waypoint.upper.writing.file_marks import (
    Attributes,
    attributes_of,
    differ,
    look,
    mark,
    xattrs_of,
)

_GONE = "what the session has moved there is gone from the machine"
LOCKED = "nothing in it may be replaced (chattr +i or +a)"
_SETID = stat.S_ISUID | stat.S_ISGID


class Planned(NamedTuple):
    """`replaced`: as in ApplyOutcome, all of them."""

    plan: ApplyPlan
    changes: list[Line]
    setid: list[str]
    conflicts: list[Line]
    replaced: list[str]


def plan(order: ApplyOrder) -> Planned:
    """Raises OSError, StateConflict, UsageProblem for a chosen path that neither side has."""
    for path in order.absent:
        if not any(has_entry(one.upper, path[len(one.target) :]) for one in order.places if is_below(path, one.target)):
            said = "there is nothing that could be applied, neither on the branch nor on the machine"
            raise UsageProblem("apply", path, said, "name what 'waypoint diff' tells, absolute or from this folder")
    found = Planned(_empty(order), [], [], [], [])
    known = Known(order.journals, order.seen, order.reverts)
    for number, place in enumerate(order.places):
        with ExitStack() as held:
            upper = held.enter_context(open_folder(place.upper))
            if not place.machine:
                said = "what was mounted there is gone from the machine"
                with os.scandir(upper) as entries:
                    found.conflicts.extend([Line(path=place.target, said=said)] if any(entries) else [])
                continue
            machine = held.enter_context(opened_machine(place.machine))
            choice = Choice(place.target, order.chosen, place.hidden)
            roots = Roots(upper, machine)
            judge = PlaceJudge(roots, choice, place.machine, known, order.since_ns)
            _PlaceWork(roots, choice, number, found, judge, force=order.force).walk()
    return found


def _empty(order: ApplyOrder) -> ApplyPlan:
    machines, targets = [one.machine for one in order.places], [one.target for one in order.places]
    return ApplyPlan(ident=order.ident, branch=order.branch, machines=machines, targets=targets, actions=[], folders=[])


class _PlaceWork:
    """The plan of one place, which is added to `found`. `force`: as of ApplyOrder."""

    def __init__(
        self, roots: Roots, choice: Choice, number: int, found: Planned, judge: PlaceJudge, *, force: bool
    ) -> None:
        self._roots = roots
        self._choice = choice
        self._number = number
        self._found = found
        self._judge = judge
        self._force = force
        self._now_ns = time.time_ns()

    def walk(self) -> None:
        waiting = [""]
        while waiting:
            path = waiting.pop()
            with opened(self._roots.upper, path) as upper, opened(self._roots.lower, path) as machine:
                folder = BothSides(path, upper, machine)
                count = len(self._found.plan.actions)
                for entry in above(self._roots, upper, path, path):
                    if self._choice.concerns(below(path, entry.name)) and self._is_merged(folder, entry):
                        waiting.append(below(path, entry.name))
                self._note_folder(folder, is_touched=len(self._found.plan.actions) > count)

    def _is_merged(self, folder: BothSides, entry: ShownEntry) -> bool:
        """Plan what becomes of an entry. Returns whether it is a folder that stays, with changes below it."""
        path = below(folder.path, entry.name)
        present = look(folder.machine, entry.name)
        if entry.is_whiteout:
            self._remove(folder, entry, path, present)
        elif not entry.is_folder:
            self._put_file(folder, entry, path, present)
        elif (entry.is_plain and entry.lower == path) or (entry.is_gone and self._judge.is_put(folder, entry)):
            return True
        else:
            self._put_folder(folder, entry, path, present)
        return False

    def _remove(self, folder: BothSides, entry: ShownEntry, path: str, present: os.stat_result | None) -> None:
        if present is not None and not self._choice.is_whole(path):
            raise _apart(self._choice.shown(path), "was removed")
        if present is not None:
            self._act(folder, entry, present, "removed")

    def _put_folder(self, folder: BothSides, entry: ShownEntry, path: str, present: os.stat_result | None) -> None:
        """Plan a folder that is not, or not only, the one that the machine has there."""
        if self._choice.is_hollow(path) and not self._judge.has_own(entry, path):
            return
        if entry.is_covered:
            self._refuse(path, "something else is mounted there now")
        elif entry.is_gone:
            self._refuse(path, _GONE)
        elif entry.is_plain and not self._choice.is_hollow(path):
            self._refuse(path, "the machine has removed or replaced this folder since the branch began")
        elif present is not None and not self._choice.is_whole(path):
            raise _apart(self._choice.shown(path), "was replaced")
        elif present is None or not self._judge.has_same(folder, entry):
            said = "new folder" if present is None else "replaced by a folder"
            self._act(folder, entry, present, f"{said}{self._look_into(entry, path)}")

    def _put_file(self, folder: BothSides, entry: ShownEntry, path: str, present: os.stat_result | None) -> None:
        if stat.S_ISCHR(entry.facts.st_mode) or stat.S_ISBLK(entry.facts.st_mode):
            self._refuse(path, "a device, which no session makes")
        elif present is None or not self._judge.is_same(folder, entry, present):
            self._act(folder, entry, present, "new" if present is None else "changed")
            self._note_setid(entry, path)

    def _act(self, folder: BothSides, entry: ShownEntry, present: os.stat_result | None, said: str) -> None:
        path = below(folder.path, entry.name)
        before = None
        if present is not None:
            try:
                before = mark(folder.machine, entry.name)
            except OSError as error:
                self._refuse(path, f"it cannot be looked at: {error.strerror}")
                return
        if before is not None and self._choice.is_hollow(path):
            self._refuse(path, "something of Waypoint's, or a mount, lies in it")
            return
        changed = self._judge.changed_since(folder, entry, before) if before is not None else ""
        if changed and not self._replaces(path, changed):
            return
        action = Action(
            place=self._number,
            folder=os.fsencode(folder.path),
            name=os.fsencode(entry.name),
            puts=not entry.is_whiteout,
            before=before,
            upper=os.fsencode(path) if not entry.is_whiteout else None,
            lower=os.fsencode(entry.lower) if entry.lower is not None else None,
        )
        self._found.plan.actions.append(action)
        self._found.changes.append(Line(path=self._choice.shown(path), said=said))

    def _refuse(self, path: str, said: str) -> None:
        self._found.conflicts.append(Line(path=self._choice.shown(path), said=said))

    def _replaces(self, path: str, changed: str) -> bool:
        """Whether what has changed on the machine since is replaced, or else a conflict. `changed`: how, in words."""
        shown = self._choice.shown(path)
        if self._force:
            self._found.replaced.append(shown)
        else:
            self._found.conflicts.append(Line(path=shown, said=changed, gives_way=True))
        return self._force

    def _note_folder(self, folder: BothSides, *, is_touched: bool) -> None:
        """Plan what becomes of the attributes of a folder that stays."""
        before, wanted = attributes_of(folder.machine), attributes_of(folder.upper)
        is_whole = self._choice.is_whole(folder.path)
        is_other = is_whole and differ(before, wanted)
        is_later = os.fstat(folder.machine).st_ctime_ns > self._judge.since_ns
        changed = "its attributes were changed on the machine since the branch began"
        if (
            is_other
            and is_later
            and not self._judge.has_left(folder, before)
            and not self._replaces(folder.path, changed)
        ):
            return
        if not is_other:
            wanted = Attributes(before.mode, before.uid, before.gid, before.xattrs, wanted.mtime_ns)
        if not is_whole or before.mtime_ns > self._judge.since_ns:
            kept = self._now_ns if is_touched or is_other else before.mtime_ns
            wanted = Attributes(wanted.mode, wanted.uid, wanted.gid, wanted.xattrs, kept)
        if is_touched or wanted != before:
            if is_locked(folder.machine):
                self._refuse(folder.path, LOCKED)
            change = FolderChange(
                place=self._number,
                folder=os.fsencode(folder.path),
                before=before,
                wanted=wanted,
                handle=handle_of(folder.machine),
            )
            self._found.plan.folders.append(change)
        if is_other:
            self._found.changes.append(Line(path=self._choice.shown(folder.path), said="attributes of the folder"))

    def _look_into(self, entry: ShownEntry, path: str) -> str:
        """Look at all of a new folder for what must be said of it. Returns how much it has, in words."""
        count = 0
        for inside, inner in all_in(self._roots, entry, path):
            if inner.is_gone or inner.is_covered:
                self._refuse(inside, _GONE)
            if not self._choice.concerns(inside) or inner.is_folder:
                continue
            count += 1
            if stat.S_ISREG(inner.facts.st_mode):
                self._note_setid(inner, inside)
            elif stat.S_ISCHR(inner.facts.st_mode) or stat.S_ISBLK(inner.facts.st_mode):
                self._refuse(inside, "a device, which no session makes")
            if inner.is_lower and inner.facts.st_ctime_ns > self._judge.since_ns:
                self._refuse(inside, "it was changed on the machine since the session moved it")
        return f" with {count} file{'' if count == 1 else 's'}"

    def _note_setid(self, entry: ShownEntry, path: str) -> None:
        mode = entry.facts.st_mode
        if not stat.S_ISREG(mode):
            return  # one that nobody may execute yet can be made executable by its owner, and keeps its capability
        if mode & _SETID or "security.capability" in xattrs_of(f"{beneath.name_of(entry.folder)}/{entry.name}"):
            self._found.setid.append(self._choice.shown(path))


def _apart(on: str, said: str) -> StateConflict:
    return StateConflict("apply a part of", on, f"in the session it {said}", f"choose all of it: {on}")
