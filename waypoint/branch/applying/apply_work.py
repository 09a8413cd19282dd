"""Changing the machine's files, as `apply_program.py` does it."""

import os
import stat
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NoReturn

from waypoint.branch.applying import apply_steps
from waypoint.branch.applying.apply_records import (
    MOST_LINES,
    Action,
    ApplyOrder,
    ApplyOutcome,
    ApplyPlan,
    Line,
    MachineOrder,
    Recovered,
    RecoverOrder,
    RevertOrder,
)
from waypoint.branch.applying.apply_steps import ApplyStep, reached
from waypoint.branch.applying.beside import Beside
from waypoint.branch.applying.choice import Choice
from waypoint.branch.applying.journal import Journal, journals_in
from waypoint.branch.applying.planning import Planned, plan
from waypoint.branch.applying.reverting import KeptSource, plan_of, plan_revert
from waypoint.branch.applying.transaction import ToldDone, Transaction, Unreplaceable
from waypoint.capture import steps
from waypoint.capture.storing.order_program import Dialogue, serve
from waypoint.linux.storage import files
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import WaypointError, as_text
from waypoint.upper.comparing.stack import below
from waypoint.upper.writing.content import NO_FD, Roots, ShownEntry, opened, opened_machine
from waypoint.upper.writing.making import Maker

Confirm = Callable[[int, ApplyOutcome], None]
"""Has it written down what has changed; returns when that is so."""


def main() -> NoReturn:
    """Carry out the orders on stdin. The first argument is the folder of steps to stop at."""
    steps.arm(sys.argv[1])
    apply_steps.listener = steps.reach

    def work(order: MachineOrder, dialogue: Dialogue) -> ApplyOutcome | Recovered:
        return carry_out(order, dialogue.told, dialogue.confirm)

    serve(MachineOrder, work, lambda order: f"the machine's files ({order.journals})")  # type: ignore[arg-type]


def carry_out(order: MachineOrder, told: ToldDone, confirm: Confirm) -> ApplyOutcome | Recovered:
    """Carry out one order. `told`: how many of the plan's actions are prepared. `confirm`: called once the machine has
    all of it. Raises WaypointError, OSError: then the machine is as it was before.
    """
    files.make_folder(order.journals, 0o700)
    with files.locked(f"{order.journals}/lock"):
        if isinstance(order, RecoverOrder):
            return _recover(order)
        found = plan(order) if isinstance(order, ApplyOrder) else plan_revert(order)
        if found.conflicts or order.dry_run or not (found.plan.actions or found.plan.folders):
            return _outcome(found)
        try:
            outcome = _outcome(found)
            _change(order, found.plan, told, lambda: confirm(outcome.files, outcome))
        except Unreplaceable as refused:
            return _outcome(found._replace(conflicts=[refused.line]))
        return _outcome(found)


def _outcome(found: Planned) -> ApplyOutcome:
    changes, conflicts = _in_order(found.changes), _in_order(found.conflicts)
    return ApplyOutcome(
        files=len(changes),
        changes=changes[:MOST_LINES],
        setid=[as_text(one) for one in sorted(found.setid)[:MOST_LINES]],
        conflicts=conflicts[:MOST_LINES],
        conflicts_total=len(conflicts),
        fixed=sum(not one.gives_way for one in conflicts),
        replaced=[as_text(one) for one in sorted(found.replaced)[:MOST_LINES]],
    )


def _in_order(lines: list[Line]) -> list[Line]:
    return [
        Line(path=as_text(one.path), said=one.said, gives_way=one.gives_way)
        for one in sorted(lines, key=lambda line: line.path)
    ]


def _change(order: ApplyOrder | RevertOrder, wanted: ApplyPlan, told: ToldDone, confirm: Callable[[], None]) -> None:
    journal = Journal(order.journals, order.ident)
    with Transaction(journal, wanted) as work:
        try:
            journal.begin(wanted)
            reached(ApplyStep.JOURNALLED)
            with _Makers(order, wanted) as makers:
                work.stage(makers.make, told)
            work.exchange()
            confirm()
        except BaseException:
            _take_back(journal)
            raise
        with suppress(OSError):  # the change is done; what is left beside is seen to by the next RecoverOrder
            work.settle()


def _recover(order: RecoverOrder) -> Recovered:
    found = Recovered(taken_back=[], finished=[], unrecorded=[], failed=[])
    for journal in journals_in(order.journals):
        try:
            _see_to(journal, order, found)
        except WaypointError as error:
            found.failed.append(str(error).replace("\n  next: ", "; "))
        except OSError as error:
            found.failed.append(f"{journal.path}: {error.strerror}: {error.filename}")
    return found


def _see_to(journal: Journal, order: RecoverOrder, found: Recovered) -> None:
    if journal.has("void"):
        return
    is_recorded = journal.ident in order.recorded
    if not is_recorded and not journal.has("done"):
        _take_back(journal)
        found.taken_back.append(journal.ident)
        return
    wanted = journal.plan()
    if wanted is None:
        return
    if not is_recorded:
        found.unrecorded.append((journal.ident, wanted.branch))
    if not journal.has("settled"):
        with Transaction(journal, wanted) as work:
            work.settle()
        found.finished.append(journal.ident)


def _take_back(journal: Journal) -> None:
    """Make all be as before the change was begun. What is known of it stays: what was put back is not what others have
    changed. Raises OSError, StateConflict.
    """
    wanted = journal.plan()
    if wanted is not None:
        with ExitStack() as held:
            give_back: Callable[[Action, int, int], None] = _give_nothing
            if wanted.of:
                above = os.path.dirname(journal.path)
                kept = held.enter_context(open_folder(Journal(above, wanted.of).kept))
                give_back = KeptSource(kept, []).give_back
            held.enter_context(Transaction(journal, wanted)).roll_back(give_back)
    else:
        journal.remove()


def _give_nothing(_action: Action, _beside: int, _number: int) -> None:
    return


class _Makers:
    """Makes what a plan puts, of what the session has or of what a journal has kept."""

    def __init__(self, order: ApplyOrder | RevertOrder, wanted: ApplyPlan) -> None:
        self._order = order
        self._plan = wanted
        self._held = ExitStack()
        self._opened, self._upper = ExitStack(), NO_FD
        self._open: tuple[int, bytes] | None = None  # which folder `_upper` is
        self._roots: list[Roots] = []
        self._makers: list[Maker] = []
        self._kept: KeptSource | None = None

    def __enter__(self) -> "_Makers":
        with ExitStack() as held:
            order = self._order
            machines = [held.enter_context(opened_machine(one)) if one else NO_FD for one in self._plan.machines]
            if isinstance(order, RevertOrder):
                journal = Journal(order.journals, order.of)
                kept = held.enter_context(open_folder(journal.kept))
                digests = [one.digest for one in plan_of(journal).actions]
                self._kept = KeptSource(kept, machines, digests)
            else:
                for place, machine in zip(order.places, machines, strict=True):
                    choice = Choice(place.target, order.chosen, place.hidden)
                    self._roots.append(Roots(held.enter_context(open_folder(place.upper)), machine))
                    self._makers.append(Maker(machine, choice.concerns))
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
        self._held.close()

    def make(self, action: Action, beside: Beside, number: int, path: str) -> bytes:
        if self._kept is not None:
            return self._kept.make(action, beside, number, path)
        roots, folder, name = self._roots[action.place], os.fsdecode(action.folder), os.fsdecode(action.name)
        upper = self._upper_folder(action)
        facts = os.stat(name, dir_fd=upper, follow_symlinks=False)
        there = os.fsdecode(action.upper or b"") if stat.S_ISDIR(facts.st_mode) else None
        lower = os.fsdecode(action.lower) if action.lower is not None else None
        entry = ShownEntry(name, upper, facts, there, lower)
        return self._makers[action.place].make_known(roots, entry, beside.fd, path, below(folder, name))

    def _upper_folder(self, action: Action) -> int:
        """A descriptor of the folder in which the action's name is, valid until one of another is asked for."""
        wanted = action.place, action.folder
        if wanted != self._open:
            self._opened.close()
            self._open = None
            self._upper = self._opened.enter_context(
                opened(self._roots[action.place].upper, os.fsdecode(action.folder))
            )
            self._open = wanted
        return self._upper
