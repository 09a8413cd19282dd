"""Points: the moments of a branch to which `rewind` can return, before each prompt of an agent or each command.

A point is an entry of the operation log that names a capture. If nothing has changed since the branch's last capture,
this capture serves for one more point. The points of a branch are those whose captures are among the ancestors of the
branch's tip, so a rewind takes later points away, and its undo brings them back.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from waypoint.branch.graph import walk_back
from waypoint.capture.layers.layer import CaptureOptions
from waypoint.model.conditions import facts_of
from waypoint.model.errors import UsageProblem
from waypoint.model.facts import PointFacts, PointMadeFacts
from waypoint.model.records import Caller, Capture, ChangeCount, Point, ProcessesLayer
from waypoint.model.requests import PointRequest, PointsQuery
from waypoint.model.times import iso_time
from waypoint.records import callers
from waypoint.records.names import Names
from waypoint.service import capture_facts, layers
from waypoint.service.change_counts import SHORT_WAIT_S
from waypoint.service.home import Home
from waypoint.service.returning import returned
from waypoint.service.session_hooks import before_capture, run_hooks
from waypoint.session import checkpoint as checkpointing
from waypoint.session.birth import rights

CONVERSATION = "conversation"
"""The kind of the attached layer that keeps the conversation of an agent outside of the session."""
MAX_LABEL_BYTES = 4096
_MOST_LISTED = 1000


async def make(home: Home, branch: str, request: PointRequest) -> PointMadeFacts:
    """Make a point of the session on `branch`: capture the session, unless its last capture has it as it is.

    Raises UnknownName, StateConflict (the session is not live), CannotCapture, Failed.
    """
    begin = time.monotonic()
    if (size := len(request.label.encode())) > MAX_LABEL_BYTES:
        said = f"its label has {size} bytes, but at most {MAX_LABEL_BYTES} are kept"
        raise UsageProblem("make", f"a point of {branch}", said, "give the first words of the prompt only")
    lost = await returned(home, branch, "checkpoint")
    live = home.sessions.get(branch)
    told, commands = request.conversation, tuple(live.commands)
    attach = {CONVERSATION: told.path} if told is not None and not told.inside else {}
    options = CaptureOptions(
        message=request.label,
        attach=await asyncio.to_thread(layers.attachments, attach) if attach else [],
        point=Point(label=request.label, commands=commands, conversation=told),
    )
    kept, reused = await checkpointing.checkpoint(home.sessions, branch, options, prepare=before_capture)
    for line in commands:
        if live.commands and live.commands[0] is line:  # else another point has taken it meanwhile
            live.commands.popleft()
    failed = [] if reused else await run_hooks(live, "post-checkpoint")
    return PointMadeFacts(
        branch=branch,
        capture=kept.id,
        tier=kept.tier,
        paused_ms=0.0 if reused else kept.paused_ms or 0.0,
        total_ms=round(1000 * (time.monotonic() - begin), 3),
        reused=reused,
        degraded=facts_of([*lost, *kept.degraded, *failed]),
    )


async def points(home: Home, branch: str, query: PointsQuery) -> list[PointFacts]:
    """The points and named checkpoints to which the branch can go back, the newest first."""
    rights.check_name(home.sessions.resources, branch, "rewind")
    live = home.sessions.find(branch)
    now = tuple(live.commands) if live is not None else ()
    return await asyncio.to_thread(_listed, home, branch, min(query.limit or _MOST_LISTED, _MOST_LISTED), now)


class _Found(NamedTuple):
    """A point, or a named checkpoint. `at`: its time."""

    at: float
    capture: Capture
    name: str = ""
    point: Point = Point()
    by: Caller | None = None


def _listed(home: Home, branch: str, limit: int, now: tuple[str, ...]) -> list[PointFacts]:
    """`now`: the commands that were executed since the newest point."""
    names, ref, sees = home.names, home.names.ref(branch), rights.may_see(home.sessions.resources)
    if ref is not None and ref.kind == "branch" and ref.capture is None:
        return []
    ancestors = {one.id: one for one in itertools.islice(walk_back(names, [names.find(branch)]), _MOST_LISTED)}
    removed = {ident for ident, standing in names.standings(list(ancestors)).items() if standing.removed}
    there = {ident: one for ident, one in ancestors.items() if ident not in removed and sees(one.setting.user)}
    found = sorted([*_points_in(names, branch, there), *_named(names, there)], key=lambda one: one.at)[-limit:]
    home.counts.want([one.capture.id for one in found], SHORT_WAIT_S)
    standings = names.standings([one.capture.id for one in found])
    facts = []
    for number, (one, later) in enumerate(itertools.zip_longest(reversed(found), [None, *reversed(found[1:])]), 1):
        assert one is not None
        is_step = later is not None and later.capture.parents[:1] == [one.capture.id]
        counted = standings[later.capture.id].changes if later is not None and is_step else None
        if later is not None and later.capture is one.capture:
            counted = ChangeCount(files=0, insertions=0, deletions=0)
        facts.append(_facts(one, number, later.point.commands if later is not None else now, counted))
    return facts


def _points_in(names: Names, branch: str, there: Mapping[str, Capture]) -> Iterator[_Found]:
    """The points of these captures. Those of another branch count only if they are older than this one."""
    own = names.ref(branch)
    if not there or own is None:
        return
    since = min(one.created for one in there.values())
    for operations in names.iter_operations():
        for one in operations:
            if one.point is None or one.point.capture not in there:
                continue
            if one.point.branch_created == own.created or one.at <= own.created:
                yield _Found(one.at, there[one.point.capture], point=one.point, by=one.by)
        if operations[-1].at < since:
            return


def points_of(names: Names, captures: Mapping[str, Capture]) -> dict[str, list[Point]]:
    """The points that these captures were taken for, by capture, the oldest first."""
    found: dict[str, list[Point]] = {ident: [] for ident in captures}
    since = min((one.created for one in captures.values()), default=float("inf"))
    for operations in names.iter_operations():
        for one in operations:
            if one.point is not None and one.point.capture in found:
                found[one.point.capture].insert(0, one.point)
        if operations[-1].at < since:
            break
    return found


def _named(names: Names, there: Mapping[str, Capture]) -> Iterator[_Found]:
    for ident, found in names.names_of_all(list(there)).items():
        for name in found:
            ref = names.ref(name)
            if ref is not None and ref.kind == "checkpoint":
                yield _Found(there[ident].created, there[ident], name=name)


def _is_own(by: Caller | None) -> bool:
    """Whether the caller has made the point: a user must not name files that another one would then write."""
    caller = callers.current()
    return by is not None and caller is not None and by.uid is not None and by.uid == caller.uid


def _facts(one: _Found, number: int, commands: tuple[str, ...], changes: ChangeCount | None) -> PointFacts:
    processes = one.capture.layer(ProcessesLayer)
    told = one.point.conversation
    if told is not None and not told.inside and not _is_own(one.by):
        told = None
    return PointFacts(
        number=number,
        capture=one.capture.id,
        at=iso_time(one.at),
        label=one.point.label or one.capture.message,
        name=one.name,
        tier=one.capture.tier,
        commands=list(commands),
        changes=capture_facts.of_changes(changes),
        processes=processes.count if processes is not None else None,
        conversation=None
        if told is None
        else {"path": told.path, "size": told.size, "tail": told.tail, "inside": told.inside},
    )
