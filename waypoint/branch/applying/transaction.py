"""Changing files of the machine as a plan says, all or nothing.

1. The plan is in the journal.
2. All that is to be put is made *beside* its place: in a folder `.waypoint-<ident>` of the same folder, which nobody
   else may enter. Then the file systems are written out (syncfs), and the journal says what waits.
3. Each name is exchanged with what waits, by one rename. What was there waits beside now. The file systems are written
   out again.
4. The operation log says that it was done; then the journal does.
5. What was there goes into the journal's folder (a rename; on another mount it was copied there in step 2).

Whoever dies before step 4 leaves what `roll_back` takes back, by renames; after it, `settle` sees to the rest. Both can
be done again. A power loss is the same: what a step relies on is durable when it begins.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from waypoint.branch.applying.apply_records import Action, ApplyPlan, FolderChange, Line, Waiting
from waypoint.branch.applying.apply_steps import ApplyStep, reached
from waypoint.branch.applying.beside import Beside, name_for
from waypoint.branch.applying.finding import enter, enter_all, is_accounted_for
from waypoint.branch.applying.journal import Journal
from waypoint.linux.storage import beneath, filesystem, renaming
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import StateConflict
from waypoint.upper.writing.content import NO_FD, Roots, ShownEntry, opened_machine
from waypoint.upper.writing.file_marks import FileMark, give_attributes, look, mark, set_mtime
from waypoint.upper.writing.making import Maker

ToldDone = Callable[[int], None]
Make = Callable[[Action, Beside, int, str], bytes]
"""Makes what the action puts: as the name of the number in the folder beside, which is at that path below the place's
root. Returns the digest of that, b"" if it is not known. Raises OSError, WaypointError.
"""
GiveBack = Callable[[Action, int, int], None]
FORBIDDEN = (errno.EPERM, errno.EACCES, errno.EROFS, errno.EBUSY, errno.EXDEV)
"""What the kernel says where something may not be replaced: chattr +i, a read-only mount, something mounted there, a
folder of an image.
"""
FULL = (errno.ENOSPC, errno.EDQUOT)
MANY = 200  # between two reports of progress


class Unreplaceable(Exception):
    """Files of the machine are not any more what the plan was made for, or the kernel lets nobody replace them."""

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self.line = line


class Transaction:
    """One change. Roots are opened when the `with` block begins."""

    def __init__(self, journal: Journal, plan: ApplyPlan) -> None:
        self._journal = journal
        self._plan = plan
        self._held = ExitStack()
        self._roots: list[int] = []
        self._groups: dict[tuple[int, bytes], list[int]] = {}
        self._handles = {(change.place, change.folder): change.handle for change in plan.folders}
        for number, action in enumerate(plan.actions):
            self._groups.setdefault((action.place, action.folder), []).append(number)

    def __enter__(self) -> "Transaction":
        with ExitStack() as held:
            for path in self._plan.machines:
                self._roots.append(held.enter_context(opened_machine(path)) if path else NO_FD)
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def stage(self, make: "Make", told: ToldDone) -> None:
        """Step 2. `make`: makes what an action puts. Raises OSError, WaypointError, Unreplaceable."""
        staged: list[Waiting] = [Waiting(0, is_copied=False)] * len(self._plan.actions)
        done = 0
        with open_folder(self._journal.kept) as kept, filesystem.writing_out(self._file_systems()):
            keeper = Maker(kept)
            for (place, folder), numbers in self._groups.items():
                path = os.fsdecode(folder)
                with ExitStack() as held:
                    fd = enter(held, self._roots[place], folder)
                    if fd is None:
                        raise Unreplaceable(_changed(self._plan, self._plan.actions[numbers[0]]))
                    with _telling(self._plan, self._plan.actions[numbers[0]]):
                        beside = held.enter_context(Beside.made(fd, self._plan.ident))
                    can_move = beside.can_move_to(kept)
                    for number in numbers:
                        with _telling_why_not_made(self._plan, self._plan.actions[number]):
                            staged[number] = _stage_one(self._plan.actions[number], make, beside, number, path)
                        if self._plan.actions[number].before is not None and not can_move:
                            _keep_copy(keeper, kept, fd, self._plan.actions[number], str(number))
                            staged[number] = msgspec.structs.replace(staged[number], is_copied=True)
                        done += 1
                        reached(ApplyStep.STAGED_ONE)
                        if done % MANY == 0:
                            told(done)
        self._write_out()
        if any(one.is_copied for one in staged):  # what was there is removed before the journal is settled
            filesystem.sync_filesystem(self._journal.kept)
        self._journal.note_staged(staged)
        reached(ApplyStep.STAGED)

    def exchange(self) -> None:
        """Step 3. Raises OSError, Unreplaceable."""
        staged = self._journal.staged() or []
        now = self._look_at_all()
        for action, present in zip(self._plan.actions, now, strict=True):
            if present != action.before:
                raise Unreplaceable(_changed(self._plan, action))
        for (place, folder), numbers in self._groups.items():
            with ExitStack() as held:
                fd = enter(held, self._roots[place], folder)
                if fd is None:
                    raise Unreplaceable(_changed(self._plan, self._plan.actions[numbers[0]]))
                beside = held.enter_context(Beside.found(fd, self._plan.ident))
                for number in numbers:
                    _exchange_one(self._plan, number, (fd, beside), staged[number])
                    reached(ApplyStep.EXCHANGED_ONE)
        for change, folder_fd in self._folders():
            give_attributes(folder_fd, change.wanted)
        self._journal.note_left(self._look_at_all())
        self._write_out()
        reached(ApplyStep.EXCHANGED)

    def _look_at_all(self) -> list[FileMark | None]:
        left: list[FileMark | None] = [None] * len(self._plan.actions)
        for (place, folder), numbers in self._groups.items():
            with ExitStack() as held:
                found = list(enter_all(held, self._roots[place], folder, self._handles.get((place, folder))))
                for number in numbers if found else ():
                    left[number] = mark(found[-1], os.fsdecode(self._plan.actions[number].name))
        return left

    def settle(self) -> None:
        """Steps 4 (its end) and 5. Raises OSError."""
        if not self._journal.has("done"):
            self._journal.note("done")
        reached(ApplyStep.FINISHED)
        staged = self._journal.staged() or []
        with open_folder(self._journal.kept) as kept:
            for fd, beside, numbers in self._present_groups():
                for number in numbers:
                    if self._plan.actions[number].before is None or look(beside.fd, str(number)) is None:
                        continue
                    if staged[number].is_copied:
                        beside.remove(number)
                    else:
                        os.rename(str(number), str(number), src_dir_fd=beside.fd, dst_dir_fd=kept)
                    reached(ApplyStep.SETTLED_ONE)
                beside.leave(fd)
        for change, folder_fd in self._folders():
            set_mtime(folder_fd, change.wanted.mtime_ns)
        self._write_out()
        filesystem.sync_filesystem(self._journal.kept)
        self._journal.note("settled")
        reached(ApplyStep.SETTLED)

    def roll_back(self, give_back: GiveBack) -> None:
        """Make all be as before the change was begun. `give_back`: called for each action while what was to be put is
        beside, with the descriptor of the folder there, and its number. Raises OSError, StateConflict.
        """
        staged = self._journal.staged()
        stuck: list[StateConflict] = []
        if staged is not None:
            for change, fd in self._folders():
                with _collecting(stuck, _shown(self._plan, change)):
                    give_attributes(fd, change.before)
        for fd, beside, numbers in self._present_groups():
            with _collecting(stuck, _shown(self._plan, self._plan.actions[numbers[0]])):
                _put_all_back(self._plan, numbers, (fd, beside), staged, give_back)
                beside.leave(fd)
        for change, fd in self._folders():
            with _collecting(stuck, _shown(self._plan, change)):
                set_mtime(fd, change.before.mtime_ns)
        self._write_out()
        for (place, folder), numbers in self._groups.items():
            if not is_accounted_for(self._roots[place], folder, self._handles.get((place, folder))):
                said = f"somebody has moved the folder; what was there before is in its {name_for(self._plan.ident)}"
                next_step = "move the folder back (if it was removed, make an empty one): the next start goes on"
                shown = _shown(self._plan, self._plan.actions[numbers[0]])
                stuck.append(StateConflict("take back the change of", shown, said, next_step))
        if stuck:
            raise stuck[0]
        self._journal.note_left(self._look_at_all())
        self._journal.note("void")
        self._journal.note("settled")

    def _present_groups(self) -> Iterator[tuple[int, Beside, list[int]]]:
        """For each folder with names that change: its descriptor, what is beside, and the numbers of the actions. Those
        where nothing is beside any more are left out. A folder that somebody has moved is found by its handle.
        """
        for (place, folder), numbers in self._groups.items():
            with ExitStack() as held:
                for fd in enter_all(held, self._roots[place], folder, self._handles.get((place, folder))):
                    beside = held.enter_context(Beside.found(fd, self._plan.ident))
                    if beside.fd >= 0:
                        yield fd, beside, numbers
                        break

    def _folders(self) -> Iterator[tuple[FolderChange, int]]:
        """Each folder whose attributes change, with its descriptor. Those that are gone are left out."""
        for change in self._plan.folders:
            with ExitStack() as held:
                found = list(enter_all(held, self._roots[change.place], change.folder, change.handle))
                if found:
                    yield change, found[-1]

    def _write_out(self) -> None:
        for path in self._file_systems():
            filesystem.sync_filesystem(path)

    def _file_systems(self) -> list[str]:
        """Paths on those in which something changes."""
        touched = {place for place, _ in self._groups} | {change.place for change in self._plan.folders}
        return [beneath.name_of(self._roots[place]) for place in touched]


def _stage_one(action: Action, make: Make, beside: Beside, number: int, folder: str) -> Waiting:
    if not action.puts:
        return Waiting(0, is_copied=False)
    digest = make(action, beside, number, beside.path_in(folder, number))
    facts = look(beside.fd, str(number))
    assert facts is not None
    return Waiting(facts.st_ino, is_copied=False, digest=digest)


def _keep_copy(keeper: Maker, kept: int, folder: int, action: Action, number: str) -> None:
    """Copy what has the action's name in the open `folder` into the folder `kept`, under its number."""
    name = os.fsdecode(action.name)
    facts = look(folder, name)
    if facts is not None:
        path = name if stat.S_ISDIR(facts.st_mode) else None
        keeper.make(Roots(NO_FD, folder), ShownEntry(name, folder, facts, None, path), kept, number, name)


def _is_alike(now: FileMark | None, then: FileMark | None) -> bool:
    """Whether it is the same file, of the same content. Another name of it may have been exchanged: its ctime is later
    then.
    """
    if now is None or then is None:
        return now is then
    return now._replace(ctime_ns=0, newest_ns=0) == then._replace(ctime_ns=0, newest_ns=0)


@contextmanager
def _collecting(stuck: list[StateConflict], folder: str) -> Iterator[None]:
    """What keeps the folder from being as before goes into `stuck`, so that all others are."""
    try:
        yield
    except StateConflict as error:
        stuck.append(error)
    except OSError as error:
        said = os.strerror(error.errno or 0)
        next_step = "undo what forbids it (chattr +a, a read-only mount, a full disk): the next start goes on"
        stuck.append(StateConflict("take back the change of", folder, said, next_step))


def _put_all_back(
    plan: ApplyPlan,
    numbers: list[int],
    places: tuple[int, Beside],
    staged: list[Waiting] | None,
    give_back: GiveBack,
) -> None:
    """Put all names of one folder back. `places`: its descriptor, and what is beside. Raises OSError, and StateConflict
    if somebody else has put something there; then all others are put back.
    """
    fd, beside = places
    taken = ""
    for number in reversed(numbers):
        action = plan.actions[number]
        if staged is not None and not _put_back(action, fd, beside.fd, number, staged[number]):
            taken = _changed(plan, action).path
        else:
            give_back(action, beside.fd, number)
    if taken:
        said = f"somebody has put another file there; what was there is in {os.path.dirname(taken)}/{beside.name}"
        next_step = "move the other file away: the next start goes on"
        raise StateConflict("take back the change of", taken, said, next_step)


def _changed(plan: ApplyPlan, action: Action, said: str = "") -> Line:
    """The conflict of an action. `said`: why the kernel lets nobody replace what is there; "": somebody changes it."""
    path = f"{_shown(plan, action).rstrip('/')}/{os.fsdecode(action.name)}"
    return Line(path=path, said=said or "it was changed on the machine just now", gives_way=not said)


def _shown(plan: ApplyPlan, change: Action | FolderChange) -> str:
    """The path of the folder in the session."""
    return f"{plan.targets[change.place].rstrip('/')}/{os.fsdecode(change.folder)}"


@contextmanager
def _telling_why_not_made(plan: ApplyPlan, action: Action) -> Iterator[None]:
    """Raises Unreplaceable for what the file system does not take; of a full disk the path is told."""
    try:
        yield
    except OSError as error:
        if error.errno in (*FORBIDDEN, errno.ENOTSUP):
            said = f"it cannot be made there: {error.strerror}"
            raise Unreplaceable(_changed(plan, action, said)) from error
        if error.errno in FULL:
            error.filename = _on_machine(plan, action)
        raise


def _on_machine(plan: ApplyPlan, action: Action) -> str:
    return os.path.join(plan.machines[action.place], os.fsdecode(action.folder), os.fsdecode(action.name))


@contextmanager
def _telling(plan: ApplyPlan, action: Action) -> Iterator[None]:
    """Raises Unreplaceable for an OSError that says so; others get the path of the machine's file."""
    try:
        yield
    except (FileNotFoundError, FileExistsError) as error:
        raise Unreplaceable(_changed(plan, action)) from error
    except OSError as error:
        if error.errno in FORBIDDEN:
            said = f"it cannot be replaced: {os.strerror(error.errno)}"
            raise Unreplaceable(_changed(plan, action, said)) from error
        error.filename = _on_machine(plan, action)
        raise


def _exchange_one(plan: ApplyPlan, number: int, places: tuple[int, Beside], staged: Waiting) -> None:
    """Let the name have what waits for it. `places`: descriptors of the folder, and what is beside. Raises OSError,
    Unreplaceable.
    """
    action, (fd, beside) = plan.actions[number], places
    if beside.fd < 0 or not _is_alike(mark(fd, os.fsdecode(action.name)), action.before):
        raise Unreplaceable(_changed(plan, action))
    with _telling(plan, action):
        _exchange(action, fd, beside.fd, str(number))
    if not _is_exchanged(action, fd, beside.fd, number, staged):
        raise Unreplaceable(_changed(plan, action))


def _exchange(action: Action, folder: int, beside: int, number: str) -> None:
    name = os.fsdecode(action.name)
    if action.puts and action.before is not None:
        renaming.exchange(beside, number, folder, name)
    elif action.puts:
        renaming.rename_new(beside, number, folder, name)
    else:
        renaming.rename_new(folder, name, beside, number)


def _is_exchanged(action: Action, folder: int, beside: int, number: int, staged: Waiting) -> bool:
    """Whether the name has what it was to get, and what it had is beside."""
    here, there = look(folder, os.fsdecode(action.name)), look(beside, str(number))
    has_new = here is not None and here.st_ino == staged.inode if action.puts else here is None
    had = there is not None and there.st_ino == action.before.inode if action.before is not None else there is None
    return has_new and had


def _put_back(action: Action, folder: int, beside: int, number: int, staged: Waiting) -> bool:
    """Let the name have again what it had before. Returns False, and changes nothing, if somebody else has put
    something there meanwhile.
    """
    name = os.fsdecode(action.name)
    here, there = look(folder, name), look(beside, str(number))
    is_new = here is not None and action.puts and here.st_ino == staged.inode
    if action.before is None:
        if is_new and there is None:
            renaming.rename_new(folder, name, beside, str(number))
        return True
    if there is None or there.st_ino != action.before.inode:
        return True  # it was not exchanged
    if here is None:
        renaming.rename_new(beside, str(number), folder, name)
    elif is_new:
        renaming.exchange(beside, str(number), folder, name)
    return here is None or is_new
