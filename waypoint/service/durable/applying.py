"""Putting what a branch has changed onto the machine, and taking that back: `apply`, and the part of `undo`, of `gc`
and of a daemon's start that is about the machine's files.

The operation log is written while the machine has all of the change and the program that made it waits: whoever is
killed before leaves a change that the next daemon takes back (branch/applying/transaction.py).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import msgspec

from waypoint.branch import undo
from waypoint.branch.applying.apply_records import (
    ApplyOrder,
    ApplyOutcome,
    ApplyPlace,
    Line,
    Recovered,
    RecoverOrder,
    RevertOrder,
)
from waypoint.branch.applying.journal import has_unsettled, journals_in
from waypoint.capture import steps
from waypoint.launch.ground import homes
from waypoint.launch.ground.base import OWN_PLACES, is_below
from waypoint.launch.ground.start_plan import plan_overlays
from waypoint.model.details.applied_facts import AppliedFacts, FileLine
from waypoint.model.details.applied_record import Applied
from waypoint.model.errors import Conflicting, NotAllowed, StateConflict, WaypointError, as_text
from waypoint.model.ids import random_hex
from waypoint.model.paths import OWN_FOLDER, quoted_path
from waypoint.model.records import Capture, Operation, Setting
from waypoint.model.requests import ApplyRequest
from waypoint.model.times import BEGAN_ELSEWHERE
from waypoint.service.background.jobs import Job
from waypoint.service.background.order_process import OrderProgram, carry_out
from waypoint.service.durable.applied_folder import journals_of
from waypoint.service.durable.home_shelves import recorded
from waypoint.service.durable.store_process import keep_record
from waypoint.service.home import Home
from waypoint.service.hooks.session_hooks import before_capture
from waypoint.session.birth import rights
from waypoint.session.checkpoint import as_it_is_now
from waypoint.session.live.holding import holding
from waypoint.store import callers
from waypoint.store.names import Names
from waypoint.upper import layout
from waypoint.upper.changes import changed_targets
from waypoint.upper.comparing.presence import is_in_base

KIND = "apply"
_MOST_NAMED = 20  # conflicts that a message has

log = logging.getLogger(__name__)


class _Origin(NamedTuple):
    """Whose files are applied. `tree`: the path of the upper tree. `line`: the captures that it goes back to.
    `since_ns`: when the branch began on the machine. `operation`: the number of that by which a live session was
    captured for this; None: none was.
    """

    branch: str
    setting: Setting
    tree: str
    line: set[str]
    since_ns: int
    capture: str | None
    operation: int | None = None


async def apply(home: Home, request: ApplyRequest) -> AppliedFacts:
    """Put what a name stands for onto the machine, all of it or nothing; a live session is captured first. With
    `request.dry_run` only tell what would be done; then a live session is looked at while it runs. Conflicts are told,
    and nothing is done then.

    Raises UnknownName, NotAllowed, StateConflict (another one is under way), Failed; then nothing is done, either.
    """
    check_rights(home, "apply", request.name)
    await _recovered(home)
    found = await home.jobs.result(home.jobs.start(KIND, lambda job: _apply(home, job, request)))
    assert isinstance(found, AppliedFacts)
    return found


def check_rights(home: Home, tried: str, on: str) -> None:
    """Only root, and who may have all that root has, changes the machine's files: with root's rights."""
    said = "the machine's files are changed with the rights of root"
    rights.check_unbound(home.sessions.resources, tried, on, said)
    caller = callers.current()
    if caller is not None and caller.uid is None and caller.branch is not None:
        raise NotAllowed(tried, on, said, "ask for it outside of the session")


async def _recovered(home: Home) -> None:
    """Wait until what is half done is seen to: the last daemon has left it, or there was no room for the journal."""
    recover(home)
    if (running := home.jobs.running(KIND)) is not None and running.is_unasked:
        await home.jobs.result(running)


async def _apply(home: Home, job: Job, request: ApplyRequest) -> AppliedFacts:
    async with _origin(home, request) as origin:
        made: list[int] = []

        def record(files: int) -> None:
            with home.names.change("apply") as change:
                change.note = f"{_counted(files)} of {_place(origin.setting)} changed as on {origin.branch}"
                capture = origin.capture or ""
                change.apply(Applied(journal=order.ident, branch=origin.branch, capture=capture, files=files))
            made.append(change.number or 0)

        try:
            order = await asyncio.to_thread(_order, home, origin, request)
            found = await _carried_out(home, job, order, record)
        finally:
            if not made and origin.operation is not None:
                _uncapture(home, origin.operation)
    return AppliedFacts(
        applied=bool(made),
        files=found.files,
        changes=_lines(found.changes),
        setid=found.setid,
        conflicts=_lines(found.conflicts),
        conflicts_total=found.conflicts_total,
        fixed=found.fixed,
        replaced=found.replaced,
        base=origin.setting.base,
        operation=made[0] if made else None,
        capture=origin.capture,
        dry_run=request.dry_run,
    )


def _uncapture(home: Home, number: int) -> None:
    """Take back the operation by which a session was captured for what was not done then: else an undo without a number
    would take back that, in place of what was done last.
    """
    try:
        with contextlib.suppress(StateConflict), home.names.change("undo") as change:  # the branch has gone on from it
            operation = change.operation(number)
            if operation is not None:
                undo.write(change, operation, undo.plan(change.ref, operation), [])
    except (WaypointError, OSError) as error:  # what came of the apply is told, not this
        log.warning("the capture for an apply that was not done stays an operation: %s", error)


def _counted(files: int) -> str:
    return f"{files} {'file' if files == 1 else 'files'}"


def _place(setting: Setting) -> str:
    return "the machine" if setting.base == "/" else quoted_path(setting.base)


def _lines(found: list[Line]) -> list[FileLine]:
    return [{"path": line.path, "said": line.said} for line in found]


@contextlib.asynccontextmanager
async def _origin(home: Home, request: ApplyRequest) -> AsyncIterator[_Origin]:
    """What `request.name` stands for, which stays on disk during the `with` block."""
    sessions, names = home.sessions, home.names
    live = sessions.find(request.name) if request.dry_run else None
    if live is not None:
        rights.check_name(sessions.resources, request.name, "apply")
        row, ref = live.record.row, names.ref(request.name)
        tip = ref.capture if ref is not None else None
        line = _line(names, names.capture(tip)) if tip is not None else (set[str](), int(row.started * 1e9))
        yield _Origin(row.branch, row.setting, home.pool.path(row.tree), *line, None)
        return
    async with sessions.turn(request.name):
        prepare, before = before_capture(home.profiles.now()), names.last_number()
        origin = await as_it_is_now(sessions, request.name, "apply", prepare)
        number = next((one.number for one in names.operations_since(before) if _has_moved_to(one, origin)), None)
    async with holding(home.captures, origin) as (held,):
        yield _Origin(origin.branch, origin.setting, held.files, *_line(names, origin), origin.id, number)


def _has_moved_to(operation: Operation, capture: Capture) -> bool:
    move = operation.moves.get(capture.branch)
    return move is not None and move.after is not None and move.after.capture == capture.id


def _line(names: Names, capture: Capture) -> tuple[set[str], int]:
    """The ids of the captures that it goes back to, itself too; and when the branch began on the machine, in
    nanoseconds since the epoch: of several, the earliest. That is 0 if an earlier version has not kept it, and 1 if
    something of it was captured elsewhere: its session has seen nothing of this machine.
    """
    began: list[float] = []
    seen: set[str] = set()
    waiting = [capture]
    while waiting:
        one = waiting.pop()
        if one.id not in seen:
            seen.add(one.id)
            above = list(names.captures_of(one.parents, may_lack=True).values())
            waiting += above
            began += [one.branch_created] if not above or one.branch_created == BEGAN_ELSEWHERE else []
    return seen, int(min(began) * 1e9)


def _earlier(names: Names, line: set[str]) -> tuple[list[str], list[str]]:
    """The journals of changes that were made of captures in `line`, and stand; and those of all changes that took
    others back. The earliest first.
    """
    seen, reverts = list[str](), list[str]()
    first = names.first_kept()
    for piece in names.iter_operations():
        for one in piece:
            if one.applied is None or one.number < first:
                continue
            if one.undoes is not None:
                reverts.append(one.applied.journal)
            elif one.applied.capture in line and not one.undone:
                seen.append(one.applied.journal)
        if piece[-1].number < first:
            break
    return seen[::-1], reverts[::-1]


def _order(home: Home, origin: _Origin, request: ApplyRequest) -> ApplyOrder:
    """Looks at files."""
    setting, places = origin.setting, home.sessions.resources.places
    places.follow_host()
    plan = plan_overlays(setting.base, places)
    base = setting.base.rstrip("/")
    hidden = [*OWN_PLACES, f"/{OWN_FOLDER}", *(bind.target for bind in setting.binds)]
    ours = homes.hidden_from(setting.user, [*(plan.homes or []), str(home.path)])
    hidden += [one.removeprefix(base) for one in ours if is_below(one, base or "/")]
    seen, reverts = _earlier(home.names, origin.line) if journals_in(journals_of(home)) else ([], [])
    found = []
    for target in sorted(changed_targets(origin.tree)):
        inner = [one for one in plan.overlays if one != target and is_below(one, target)]
        place = ApplyPlace(
            target=as_text(target),
            upper=layout.upper_of(origin.tree, target),
            machine=f"{base}{target}" if target in plan.overlays and target.isprintable() else "",
            hidden=[as_text(one) for one in (*hidden, *inner)],
        )
        found.append(place)
    return ApplyOrder(
        journals=journals_of(home),
        ident=random_hex(8),
        branch=origin.branch,
        places=found,
        since_ns=origin.since_ns,
        chosen=request.paths,
        seen=seen,
        reverts=reverts,
        dry_run=request.dry_run,
        force=request.force,
        absent=[path for path in request.paths if not is_in_base(setting.base, path)],
    )


async def revert(home: Home, operation: Operation, record: Callable[[Applied], None], *, force: bool) -> list[str]:
    """Let the machine's files be as before an operation. `record`: writes the operation log, when the machine has them;
    what it raises is raised, and nothing is done then. The caller has found that the operation can be taken back.
    `force`: also files that somebody has changed since. Returns the first of those.

    Raises Conflicting with the first of the files that were changed since, NotAllowed, StateConflict, StoreDamaged,
    Failed; then nothing is done.
    """
    check_rights(home, "take back", f"operation {operation.number}")
    await _recovered(home)
    found = await home.jobs.result(
        home.jobs.start(KIND, lambda job: _revert(home, job, operation, record, force=force))
    )
    assert isinstance(found, list)
    return found


async def _revert(
    home: Home, job: Job, operation: Operation, record: Callable[[Applied], None], *, force: bool
) -> list[str]:
    assert operation.applied is not None
    last, later = await asyncio.to_thread(_in_effect, home.names, operation)
    branch = operation.applied.branch
    order = RevertOrder(
        journals=journals_of(home), ident=random_hex(8), branch=branch, of=last, later=later, dry_run=False, force=force
    )

    def note(files: int) -> None:
        record(Applied(journal=order.ident, branch=branch, files=files))

    found = await _carried_out(home, job, order, note)
    if found.conflicts:
        shown = [f"{quoted_path(line.path)} ({line.said})" for line in found.conflicts[:_MOST_NAMED]]
        more = found.conflicts_total - len(shown)
        said = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
        force_it = f"waypoint undo {operation.number} --force"
        next_step = f"move that away and try again; or have it replaced, which the undo keeps: {force_it}"
        if found.fixed:
            next_step = "see to these folders (move them back or make them, umount, chattr -i -a); then try again"
        raise Conflicting("take back", f"operation {operation.number} ({operation.verb})", said, next_step)
    return found.replaced


def _in_effect(names: Names, operation: Operation) -> tuple[str, list[str]]:
    """The journal that has kept what the operation has replaced, which is another one if it was taken back and done
    again, however often; and the journals of the reverts after that.
    """
    assert operation.applied is not None
    journal, later = operation.applied.journal, list[str]()
    by_turns = {operation.number}  # itself, what took it back, what did it again, and so on
    for one in names.operations_since(operation.number):
        if one.applied is not None and one.undoes is not None:
            later.append(one.applied.journal)
            if one.undoes in by_turns:
                journal, later = one.applied.journal, []
                by_turns.add(one.number)
    return journal, later


async def _carried_out(
    home: Home, job: Job, order: ApplyOrder | RevertOrder, record: Callable[[int], None]
) -> ApplyOutcome:
    """Have the order carried out. `record`: is given how many files change, when the machine has them. After a failure
    nothing is done.
    """
    recorded: list[ApplyOutcome] = []

    def confirm(about: dict[str, object]) -> None:
        outcome = msgspec.convert(about, ApplyOutcome)
        record(outcome.files)
        recorded.append(outcome)

    program = _program()
    try:
        outcome = await carry_out(program, order, ApplyOutcome, job, confirm)
        await asyncio.to_thread(keep_record, home)
    except BaseException as error:
        await asyncio.shield(asyncio.ensure_future(_recover(home)))
        if recorded and isinstance(error, WaypointError):
            return recorded[0]  # the program was killed as it put in order what was done, or only the sync has failed
        raise
    return outcome


def _program() -> OrderProgram:
    return OrderProgram("branch/apply_program.py", "the machine's files", (steps.armed(),))


def recover(home: Home) -> None:
    """See to changes that the last daemon has left half done: take them back, or finish those that are in the operation
    log. Begins a job if there are any.
    """
    if has_unsettled(journals_of(home)):
        with contextlib.suppress(StateConflict):  # one is under way
            home.jobs.start(KIND, lambda job: _recover(home), is_unasked=True)


async def _recover(home: Home) -> None:
    """Does not raise WaypointError: what cannot be seen to is logged, and tried again by the next daemon."""
    journals = journals_of(home)
    try:
        known = sorted(await asyncio.to_thread(recorded, home.names))
        found = await carry_out(_program(), RecoverOrder(journals=journals, recorded=known), Recovered)
    except WaypointError as error:
        log.error("%s", error)
        return
    for journal, branch in found.unrecorded:
        with home.names.change("apply") as change:
            change.note = f"files of the machine changed as on {branch}, before the machine went down"
            change.apply(Applied(journal=journal, branch=branch, files=0))
    for ident in found.taken_back:
        log.warning("a change of the machine's files was broken off, and was taken back: %s", ident)
    for said in found.failed:
        log.error("a change of the machine's files was broken off: %s", said)


def forget_expired(home: Home) -> None:
    """Remove what was kept for operations that cannot be taken back any more; what names.db does not know stays, since
    another one may. Blocks. Raises OSError.
    """
    journals = journals_in(journals_of(home))
    if journals:
        first = home.names.first_kept()
        pieces = home.names.iter_operations()
        kept = {one.applied.journal for piece in pieces for one in piece if one.applied and one.number >= first}
        kept |= {one.id for one in home.present_strangers() if one.kind == "journal"}
        failed: OSError | None = None
        for journal in journals:
            is_young = journal.has("void") and journal.age_s() < home.config.keep_operations_s
            if journal.ident not in kept and journal.has("settled") and not is_young:
                try:
                    journal.remove()
                except OSError as error:  # such as a file that nobody may remove (chattr +i)
                    failed = failed or error
        if failed is not None:
            raise failed
