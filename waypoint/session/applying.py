"""Applying the changes of a capture to the machine's files, and taking that back.

The files are changed as upper/transaction.py describes. The entry in the operation log decides: a change without one is
rolled back, by the daemon that has begun it or by the next one.
"""

import asyncio
import contextlib
import functools
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from waypoint.branch.graph import walk_back
from waypoint.capture.captures import HeldCapture
from waypoint.capture.steps import Step as FaultPoint
from waypoint.capture.steps import reach
from waypoint.linux.calls import abilities
from waypoint.linux.calls.handles import open_handle, parse_origin
from waypoint.linux.storage import beneath
from waypoint.linux.storage.birth import birth_ns
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import pauses
from waypoint.linux.tasks.stages import stage
from waypoint.model.errors import Conflicting, Failed, HostLacks, NotAllowed, StoreDamaged, as_text, of_machine
from waypoint.model.ids import new_id
from waypoint.model.paths import SET_UP_BY_ROOT
from waypoint.model.records import Applied, Operation, Ref
from waypoint.model.stages import Stage
from waypoint.records.change import Change as Record
from waypoint.session import repositories
from waypoint.session.birth import rights
from waypoint.session.live.resources import Resources
from waypoint.session.registry import Registry
from waypoint.session.views import lower_of, mounted_view, scope_of
from waypoint.upper import layout
from waypoint.upper.apply_journal import ApplyPlan, Journal, Step, journals_in
from waypoint.upper.apply_plan import (
    Conflict,
    Planner,
    Resolution,
    Rules,
    Seen,
    find_missing_folders,
    plan_reversal,
)
from waypoint.upper.changes import changed_targets
from waypoint.upper.comparing import Change, changes, contents
from waypoint.upper.contract import NEXT_STEPS
from waypoint.upper.copies import Copies
from waypoint.upper.marks import ORIGIN
from waypoint.upper.patches import MOST_BYTES
from waypoint.upper.transaction import Changed, Make, Transaction
from waypoint.upper.views import Entry, Pairs, Views, candidates

_TRIES = 10  # to put files back, or to settle a change
_BETWEEN_PAUSES = 32  # changes that are planned before the thread waits for a frozen session

log = logging.getLogger(__name__)


class ApplyOptions(NamedTuple):
    """`name`: of the branch or capture, for messages. `paths`: as for `scope_of`. `dry_run`: only plan."""

    name: str
    paths: Sequence[str]
    resolution: Resolution = "refuse"
    allow_special: bool = False
    dry_run: bool = False


class Outcome(NamedTuple):
    """What an apply has changed, or would change. `targets`: the mount points in the session, by place. `replaced`: the
    paths of changed files of the machine that were replaced. `number`: of the entry in the operation log; None: nothing
    was changed. With `conflicts` nothing was changed.
    """

    targets: list[str]
    changes: list[tuple[int, Change]]
    conflicts: list[Conflict]
    replaced: list[tuple[int, str]]
    number: int | None = None


async def apply(sessions: Registry, held: HeldCapture, options: ApplyOptions, *, is_new: bool, is_tip: bool) -> Outcome:
    """Apply the changes of the capture to the machine, with the rights of the caller. `is_new`: the capture is not
    recorded, so the apply records it. `is_tip`: it becomes the tip of its branch. The caller must have the turns
    (locks) of the branch and of the machine. Raises Failed, NotAllowed, Conflicting; nothing has changed then.
    """
    return await asyncio.to_thread(_apply, sessions.resources, held, options, is_new=is_new, is_tip=is_tip)


def _apply(resources: Resources, held: HeldCapture, options: ApplyOptions, *, is_new: bool, is_tip: bool) -> Outcome:
    with contextlib.ExitStack() as opened, failing("apply", options.name):
        resources.places.follow_host()
        planning = _Planning(resources, held, options, Planner(), opened)
        planning.add_places()
        outcome, plan = planning.outcome(), planning.plan()
        if outcome.conflicts or options.dry_run or not outcome.changes:
            return outcome
        if not abilities.own().owners:
            said = "this home works without root, which writes a journal beside the changed files"
            way = f"{SET_UP_BY_ROOT}; or bring files out with 'waypoint cp'"
            raise HostLacks("apply", options.name, said, way, code="needs-root")

        def record(change: Record) -> None:
            if is_new:
                change.add(held.capture)
            if is_tip:
                change.advance(held.capture.branch, held.capture.id)
            change.applied = Applied(journal=plan.ident, branch=plan.branch, count=len(outcome.changes))
            change.note = _note(plan, len(outcome.changes))

        return outcome._replace(
            number=_carry_out(resources, plan, Copies(planning.original, planning.merged).make, "apply", record)
        )


class _Planning:
    """The plan of an apply. `opened`: keeps the views mounted. `pairs`: find entries in the view and on the machine, by
    place.
    """

    def __init__(
        self,
        resources: Resources,
        held: HeldCapture,
        options: ApplyOptions,
        planner: Planner,
        opened: contextlib.ExitStack,
    ) -> None:
        self._resources = resources
        self._held = held
        self._options = options
        self._planner = planner
        self._opened = opened
        self._targets = sorted(changed_targets(held.files))
        self._lowers = [lower_of(held.capture.setting.base, target) for target in self._targets]
        self._branches: set[str] = set()  # of the capture and its ancestors
        self.pairs: list[Pairs] = []

    @functools.cached_property
    def _knows_first_changes(self) -> bool:
        """Whether the files of the upper tree are as old as the session's first changes of them. Copies are not: a pool
        of the driver `copy` copies them for each capture, and `restore --only files` for the session.
        """
        if self._resources.pool.driver != "btrfs":
            return False
        aside = (one.aside.get(branch) for one in _operations(self._resources) for branch in self._branches)
        return not any(one is not None and one.only == "files" for one in aside)

    @stage(Stage.COMPARE)
    def add_places(self) -> None:
        resources, capture = self._resources, self._held.capture
        ancestors = list(walk_back(resources.names, [capture]))
        since_ns = int(ancestors[-1].branch_created * 1e9)
        seen = Seen(since_ns, {one.id for one in ancestors}, journals_in(journals_of(resources)))
        self._branches = {one.branch for one in ancestors}
        for place in range(len(self._targets)):
            self._add_place(place, seen)

    def _add_place(self, place: int, seen: Seen) -> None:
        resources, setting, target = self._resources, self._held.capture.setting, self._targets[place]
        enter, upper = self._opened.enter_context, layout.upper_of(self._held.files, target)
        view = enter(mounted_view(resources.places, setting.base, target, upper))
        views = Views(enter(open_folder(view.path)), enter(open_folder(self._lowers[place])))
        above = enter(open_folder(upper))
        pairs = enter(Pairs(views, (above, None)))
        self.pairs.append(pairs)
        scope = scope_of(resources.places, setting, target, self._options.paths)
        if scope is None:
            return

        def lost_its_source(path: str) -> bool:
            with contextlib.suppress(OSError), beneath.opened(above, path, os.O_PATH | os.O_NOFOLLOW) as fd:
                return _has_lost_source(os.getxattr(beneath.name_of(fd), ORIGIN), views.present)
            return False

        def has_nothing_staged(path: str) -> bool:
            return repositories.has_nothing_staged(resources, f"{self._lowers[place].rstrip('/')}/{path}")

        def is_in_upper(path: str) -> bool:
            with contextlib.suppress(OSError), beneath.opened(above, path, os.O_PATH | os.O_NOFOLLOW):
                return True
            return False

        def first_changed_ns(path: str) -> int:
            return _first_change(above, path) if self._knows_first_changes else 0

        differing = candidates(upper, "", scope.concerns)

        def merge(change: Change) -> bytes | None:
            machine, session = contents(change, pairs, MOST_BYTES)
            if machine is None or session is None or max(len(machine), len(session)) > MOST_BYTES:
                return None
            path = f"{self._lowers[place].rstrip('/')}/{change.path}"
            return repositories.merge(resources, path, machine, session)

        rules = Rules(
            seen=seen,
            resolution=self._options.resolution,
            allow_special=self._options.allow_special,
            first_changed_ns=first_changed_ns,
            lost_its_source=lost_its_source,
            is_in_upper=is_in_upper,
            has_nothing_staged=has_nothing_staged,
            merge=merge,
        )
        with rights.as_caller(resources):
            self._planner.add_place(place, _unhurried(changes(differing, pairs, scope)), pairs, rules)

    @property
    def merged(self) -> Mapping[tuple[int, str], bytes]:
        return self._planner.merged

    def original(self, step: Step) -> Entry | None:
        return self.pairs[step.place].at(step.name).wanted

    def plan(self) -> ApplyPlan:
        capture = self._held.capture
        steps, folders = self._planner.steps()
        places = list(zip(self._targets, self._lowers, strict=True))
        return _new_plan(self._resources, capture.branch, capture.id, places, (steps, folders))

    def outcome(self) -> Outcome:
        machine = [one.views.present for one in self.pairs]
        conflicts = self._planner.conflicts + find_missing_folders(self._planner.steps()[0], machine)
        return Outcome(self._targets, self._planner.changes, conflicts, self._planner.replaced)


def _first_change(upper: int, path: str) -> int:
    """When the entry of the upper directory was made that hides the base's entry at the path: there, or above it.
    Snapshots keep this time.
    """
    while path:
        folder, _, name = path.rpartition("/")
        with contextlib.suppress(OSError), beneath.opened(upper, folder, os.O_PATH | os.O_DIRECTORY) as above:
            return birth_ns(above, name)
        path = folder
    return 0


def _has_lost_source(origin: bytes, machine: int) -> bool:
    """Whether the machine no longer has the file from which overlayfs has made a copy, as far as the caller may know.
    `origin`: the mark of the copy.
    """
    handle = parse_origin(origin)
    if handle is None:
        return True
    try:
        fd = open_handle(machine, handle.kind, handle.real)
    except OSError:  # ESTALE: there is no such file
        return True
    try:
        return os.fstat(fd).st_nlink == 0  # removed, but still in use
    finally:
        os.close(fd)


def _new_plan(
    resources: Resources,
    branch: str,
    capture: str,
    places: Sequence[tuple[str, str]],
    steps_and_folders: tuple[list[Step], list[Step]],
) -> ApplyPlan:
    user = rights.restricted_caller(resources)
    return ApplyPlan(
        ident=new_id(),
        branch=branch,
        capture=capture,
        uid=user.uid if user is not None else os.geteuid(),
        gid=user.gid if user is not None else os.getegid(),
        places=[lower for _, lower in places],
        targets=[target for target, _ in places],
        steps=steps_and_folders[0],
        folders=steps_and_folders[1],
    )


def _unhurried(found: Iterator[Change]) -> Iterator[Change]:
    for number, change in enumerate(found):
        if number % _BETWEEN_PAUSES == 0:
            pauses.wait()
        yield change


async def take_back(sessions: Registry, operation: Operation, names: Mapping[str, Ref | None], *, force: bool) -> int:
    """Undo an operation that has changed the machine's files, and move `names`. The caller must have the turns (locks)
    of these names and of the machine. `force`: also where files were changed after the operation. Returns the number of
    the undo's entry in the log.

    Raises Conflicting if a file was changed after that, Failed, NotAllowed; nothing has changed then.
    """
    return await asyncio.to_thread(_take_back, sessions.resources, operation, names, force=force)


def _take_back(resources: Resources, operation: Operation, names: Mapping[str, Ref | None], *, force: bool) -> int:
    applied, on = operation.applied, f"operation {operation.number} ({operation.verb})"
    assert applied is not None
    _check_own(resources, operation, on)
    former = Journal(journals_of(resources), applied.journal)
    with contextlib.ExitStack() as opened, failing("undo", on):
        before = former.plan()
        if before is None:
            raise StoreDamaged("undo", on, f"its journal is missing: {former.folder}", "restore this folder")
        roots = [opened.enter_context(open_folder(place)) for place in before.places]
        kept = opened.enter_context(open_folder(former.kept))
        seen = Seen(0, set(), journals_in(journals_of(resources)))
        reversal = plan_reversal(before, former.left(), roots, seen, force=force)
        if reversal.conflicts:
            raise _changed_since(operation, before, reversal.conflicts)
        places = list(zip(before.targets, before.places, strict=True))
        plan = _new_plan(resources, before.branch, "", places, (reversal.steps, reversal.folders))

        def record(change: Record) -> None:
            change.undo(operation.number)
            for name, ref in names.items():
                change.put(name, ref)
            change.applied = Applied(journal=plan.ident, branch=plan.branch, count=applied.count)
            change.note = _note(plan, applied.count)
            kept = [f"{before.targets[place].rstrip('/')}/{os.fsdecode(path)}" for place, path in sorted(reversal.kept)]
            if kept:
                more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
                change.note += as_text(f"; kept because of other files in it: {kept[0]}{more}")

        with os.scandir(kept) as entries:
            counted = Counter(entry.inode() for entry in entries)
        copies = Copies(lambda step: Entry(kept, str(step.kept)), former=counted)
        return _carry_out(resources, plan, copies.make, "undo", record)


def _changed_since(operation: Operation, plan: ApplyPlan, conflicts: Sequence[Conflict]) -> Conflicting:
    first = next((one for one in conflicts if not one.can_choose), conflicts[0])
    more = f" and {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
    said = f"{plan.targets[first.place].rstrip('/')}/{first.path}{more}: {first.said}; nothing was changed"
    force = f"waypoint undo {operation.number} --force"
    next_step = f"replace these files (they are kept, and an undo of that brings them back): {force}"
    if not first.can_choose:
        next_step = "move this file or folder away, and try again"
    return Conflicting("undo", f"operation {operation.number} ({operation.verb})", said, next_step)


def _note(plan: ApplyPlan, count: int) -> str:
    return f"{count} {'file' if count == 1 else 'files'} of the machine changed ({plan.branch})"


def _check_own(resources: Resources, operation: Operation, on: str) -> None:
    user = rights.restricted_caller(resources)
    if user is not None and (operation.by is None or operation.by.uid != user.uid):
        raise NotAllowed("undo", on, "another user requested it", "let root run the command")


@stage(Stage.APPLY)
def _carry_out(resources: Resources, plan: ApplyPlan, make: Make, verb: str, record: Callable[[Record], None]) -> int:
    """Change the machine's files and record that by an operation. Returns its number. If that fails, everything is as
    before, except if the error says that former files could not be put back.
    """
    journal = Journal(journals_of(resources), plan.ident)
    with Transaction(journal, plan, functools.partial(rights.as_caller, resources)) as work:
        try:
            journal.begin(plan)
            work.stage(make)
            reach(FaultPoint.STAGED)
            work.exchange()
            reach(FaultPoint.EXCHANGED)
            with resources.names.change(verb) as change:
                record(change)
        except BaseException as error:
            said = _try(journal, work.roll_back)
            if said:
                raise _left_over(verb, plan, work, said) from error
            raise
        reach(FaultPoint.APPLIED)
        _try(journal, work.settle)
    return change.number or 0


def _try(journal: Journal, act: Callable[[], None]) -> str:
    """Call `act`, several times if it fails, because programs of the machine may change the files at the same moment.
    Returns why it has failed, or "".
    """
    said = ""
    for _ in range(_TRIES):
        try:
            act()
        except OSError as error:
            where = f": {os.fsdecode(error.filename)}" if error.filename else ""
            said = f"{error.strerror or error}{where}"
        else:
            return ""
    log.error("the journal %s is finished by the next daemon: %s", journal.folder, said)
    return said


def _left_over(verb: str, plan: ApplyPlan, work: Transaction, said: str) -> Failed:
    kept = ", ".join(work.folders)
    next_step = "correct this, then let a new daemon put them back: waypoint daemon stop; waypoint ps"
    said = f"it has failed, and former files could not be put back: {said}; they are in {kept}"
    return Failed(verb, f"the changes of {plan.branch}", said, next_step)


def recover(resources: Resources) -> None:
    """Finish the changes of the machine's files that the last daemon has begun: roll them back, unless they are in the
    operation log.
    """
    unfinished = [
        journal
        for journal in journals_in(journals_of(resources))
        if not journal.has("settled") and not journal.has("void")
    ]
    recorded = {one.applied.journal for one in _operations(resources) if one.applied} if unfinished else set()
    for journal in unfinished:
        try:
            plan = journal.plan()
            if plan is None:
                journal.remove()
                continue
            with Transaction(journal, plan) as work:
                _try(journal, work.settle if journal.ident in recorded else work.roll_back)
        except (OSError, ValueError) as error:
            log.error("cannot finish the journal %s: %s", journal.folder, error)


def forget(resources: Resources) -> None:
    """Remove the replaced files of operations that can no longer be undone. Their journals still tell which files of
    the machine they have left, and are removed when all sessions have begun after them.
    """
    found = {journal.ident: journal for journal in journals_in(journals_of(resources))}
    if found:
        first = resources.names.first_kept()
        kept = {one.applied.journal for one in _operations(resources) if one.applied and one.number >= first}
        refs = (ref for piece in resources.names.iter_refs() for ref in piece.values())
        oldest = min((ref.created for ref in refs), default=math.inf)
        for ident in found.keys() - kept:
            if found[ident].has("settled") or found[ident].has("void"):
                found[ident].forget(is_needed=found[ident].began() > oldest)


def journals_of(resources: Resources) -> Path:
    return resources.places.home / "applied"


def _operations(resources: Resources) -> Iterator[Operation]:
    for piece in resources.names.iter_operations():
        yield from piece


@contextlib.contextmanager
def failing(tried: str, on: str) -> Iterator[None]:
    """Give errors of the `with` block, in which nothing is changed after an error, the form for the user."""
    try:
        yield
    except Changed as error:
        said = f"{error.path} was changed at this moment; nothing was changed"
        raise Conflicting(tried, on, said, "try again") from error
    except PermissionError as error:
        said = f"{error.strerror}: {os.fsdecode(error.filename or '')}; nothing was changed"
        raise NotAllowed(tried, on, said, "let root run the command, or name other files: -- PATH...") from error
    except OSError as error:
        where = f": {os.fsdecode(error.filename)}" if error.filename else ""
        said = f"{error.strerror or error}{where}; nothing was changed"
        next_step = NEXT_STEPS.get(error.errno or 0, "try again, or name other files: -- PATH...")
        raise Failed(tried, on, said, next_step, code=of_machine(error.errno)) from error
