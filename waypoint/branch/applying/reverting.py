"""Taking back a change of the machine's files: the plan that gives each name what the journal has kept of it."""

import errno
import os
import stat
import time
from collections.abc import Sequence
from contextlib import ExitStack

from waypoint.branch.applying.apply_records import Action, ApplyPlan, FolderChange, Line, RevertOrder
from waypoint.branch.applying.beside import Beside
from waypoint.branch.applying.finding import enter
from waypoint.branch.applying.journal import Journal
from waypoint.branch.applying.own_changes import Known, name_in
from waypoint.branch.applying.planning import LOCKED, Planned
from waypoint.linux.calls.handles import handle_of
from waypoint.linux.storage import renaming
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.storage.filesystem import is_locked
from waypoint.model.errors import StateConflict, StoreDamaged
from waypoint.upper.writing.content import NO_FD, Roots, ShownEntry, opened_machine
from waypoint.upper.writing.file_marks import Attributes, FileMark, attributes_of, differ, look, mark, may_be_same
from waypoint.upper.writing.making import Maker
from waypoint.upper.writing.whole_digest import are_same, digest_of

_READ_AT_MOST = 16 << 20
"""Bytes of a file that is read for its digest though it is only moved."""
_NO_PLACE = "its folder is not there any more, or a link or a mount is in its place"
_MOUNTED = "something is mounted in it"
_CHANGED = "it was changed on the machine since it was applied"
_ATTRIBUTES = "its attributes were changed on the machine since they were applied"


def plan_revert(order: RevertOrder) -> Planned:
    """The plan. Conflicts are files that are neither as they were put there nor as they were before, and those whose
    folder is gone; with `order.force` the latter alone. A name that nothing has any more is none: whoever has changed
    the file has put it elsewhere. Raises OSError, StateConflict, StoreDamaged.
    """
    journal = Journal(order.journals, order.of)
    done = plan_of(journal)
    if not journal.has("settled"):
        said = "what was there before has not come into the journal yet: it waits beside its place"
        next_step = "see why: waypoint daemon logs; then try again"
        raise StateConflict("take back", f"the change {journal.ident}", said, next_step)
    with ExitStack() as held:
        kept = held.enter_context(open_folder(journal.kept))
        roots = [held.enter_context(opened_machine(path)) if path else NO_FD for path in done.machines]
        work = _RevertWork(order, done, journal, kept)
        for number, action in enumerate(done.actions):
            work.plan_name(number, roots[action.place])
        for change in done.folders:
            work.plan_folder(change, roots[change.place])
        return work.planned()


def plan_of(journal: Journal) -> ApplyPlan:
    """Raises StoreDamaged if it is not there."""
    plan = journal.plan()
    if plan is None:
        said = "the journal of what was changed is gone"
        raise StoreDamaged("take back", f"the change {journal.ident}", said, "see 'waypoint op log'")
    return plan


class _RevertWork:
    """Makes the plan that takes `done` back, the plan of the journal. `kept`: a descriptor of the folder with what was
    there before.
    """

    def __init__(self, order: RevertOrder, done: ApplyPlan, journal: Journal, kept: int) -> None:
        self._order = order
        self._done = done
        self._left = journal.left()
        self._staged = journal.staged() or []
        self._kept = kept
        self._known = Known(order.journals, [order.of], order.later)
        self._actions: list[Action] = []
        self._folders: list[FolderChange] = []
        self._changes: list[Line] = []
        self._conflicts: list[Line] = []
        self._lost: list[str] = []
        self._replaced: list[str] = []

    def planned(self) -> Planned:
        """Raises StoreDamaged if what is to be put back is not in the journal, and there are no conflicts."""
        order, done = self._order, self._done
        if self._lost and not self._conflicts:
            said = "what was there before is not in the journal any more"
            raise StoreDamaged("take back the change of", self._lost[0], said, "see 'waypoint op log'")
        plan = ApplyPlan(
            ident=order.ident,
            branch=order.branch,
            machines=done.machines,
            targets=done.targets,
            actions=self._actions,
            folders=self._folders,
            of=order.of,
        )
        return Planned(plan, self._changes, [], self._conflicts, self._replaced)

    def plan_name(self, number: int, root: int) -> None:
        action = self._done.actions[number]
        with ExitStack() as held:
            folder = enter(held, root, action.folder)
            if folder is None:
                self._refuse(self._shown(action.place, action.folder, action.name), _NO_PLACE)
                return
            self._plan_in(number, folder)

    def _plan_in(self, number: int, folder: int) -> None:
        action = self._done.actions[number]
        shown, name = self._shown(action.place, action.folder, action.name), os.fsdecode(action.name)
        try:
            present = mark(folder, name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._refuse(shown, _MOUNTED)
            return
        puts = action.before is not None
        if present is None and not puts:
            return
        if puts and look(self._kept, str(number)) is None:
            self._lost.append(shown)
            return
        is_as_put = present is not None and self._is_as_put(number, present, (folder, name))
        if present is not None and not is_as_put and not self._is_as_before(number, present, (folder, name)):
            if not self._order.force:
                self._conflicts.append(Line(path=shown, said=_CHANGED, gives_way=True))
                return
            self._replaced.append(shown)
        back = Action(
            place=action.place,
            folder=action.folder,
            name=action.name,
            puts=puts,
            before=present,
            kept=number,
            digest=self._staged[number].digest if is_as_put else b"",
        )
        self._actions.append(back)
        self._changes.append(Line(path=shown, said="as it was before" if puts else "removed"))

    def _is_as_put(self, number: int, present: FileMark, at: tuple[int, str]) -> bool:
        named = name_in(self._done, self._done.actions[number])
        return self._known.is_still(named, self._known.as_left(named, present, at), self._left[number])

    def _is_as_before(self, number: int, present: FileMark, at: tuple[int, str]) -> bool:
        before = mark(self._kept, str(number))
        return before is not None and may_be_same(before, present) and are_same((self._kept, str(number)), at)

    def plan_folder(self, change: FolderChange, root: int) -> None:
        with ExitStack() as held:
            fd = enter(held, root, change.folder)
            if fd is None:
                return  # with what was changed in it, which is a conflict
            present, handle, cannot_change = attributes_of(fd), handle_of(fd), is_locked(fd)
        shown = self._shown(change.place, change.folder)
        if cannot_change:
            self._refuse(shown, LOCKED)
            return
        source = present
        if differ(change.before, change.wanted) and differ(change.before, present):
            if differ(present, change.wanted):
                if not self._order.force:
                    self._conflicts.append(Line(path=shown, said=_ATTRIBUTES, gives_way=True))
                    return
                self._replaced.append(shown)
            source = change.before
            self._changes.append(Line(path=shown, said="attributes of the folder, as they were before"))
        mtime = change.before.mtime_ns if present.mtime_ns == change.wanted.mtime_ns else time.time_ns()
        wanted = Attributes(source.mode, source.uid, source.gid, source.xattrs, mtime)
        self._folders.append(
            FolderChange(place=change.place, folder=change.folder, before=present, wanted=wanted, handle=handle)
        )

    def _refuse(self, shown: str, said: str) -> None:
        self._conflicts.append(Line(path=shown, said=said))

    def _shown(self, place: int, *parts: bytes) -> str:
        path = os.fsdecode(b"/".join(filter(None, parts)))
        return f"{self._done.targets[place].rstrip('/')}/{path}"


class KeptSource:
    """Makes what a revert puts: moves it out of the journal that has kept it, or copies it from there."""

    def __init__(self, kept: int, roots: Sequence[int], digests: Sequence[bytes] = ()) -> None:
        """`kept`: a descriptor of the folder of that journal. `roots`: of the places. `digests`: of what is in it, as
        far as they are known, by the numbers of its actions.
        """
        self._kept = kept
        self._digests = digests
        self._makers = [Maker(root) for root in roots]

    def make(self, action: Action, beside: Beside, number: int, path: str) -> bytes:
        """Returns the digest of what was made; b"" if it was moved, and is unknown and no small file."""
        name = str(action.kept)
        facts = os.stat(name, dir_fd=self._kept, follow_symlinks=False)
        try:
            renaming.rename_new(self._kept, name, beside.fd, str(number))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            entry = ShownEntry(name, self._kept, facts, None, name)
            return self._makers[action.place].make_known(Roots(NO_FD, self._kept), entry, beside.fd, path, name)
        assert action.kept is not None
        if known := self._digests[action.kept]:
            return known
        is_small = stat.S_ISREG(facts.st_mode) and facts.st_size <= _READ_AT_MOST
        return digest_of(beside.fd, str(number)) if is_small else b""

    def give_back(self, action: Action, beside: int, number: int) -> None:
        """What `make` has moved comes back to the journal."""
        if action.kept is None or not action.puts:
            return
        name = str(action.kept)
        if look(self._kept, name) is None and look(beside, str(number)) is not None:
            renaming.rename_new(beside, str(number), self._kept, name)
