"""The verbs inside a session that move its branch or make branches from it.

If a verb replaces or ends the session that asks, the asking process is gone and nobody reads the answer.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.outcomes import HEADINGS, NOT_RUN, degraded_lines, point_line, replaced_lines, text, undone_lines
from waypoint.model.records import Conversation
from waypoint.model.rendering import points_table, stop_line
from waypoint.model.requests import (
    CheckpointRequest,
    ForkRequest,
    PointRequest,
    PointsQuery,
    RestoreRequest,
    StopRequest,
    UndoRequest,
    WantedTier,
)
from waypoint.model.verbs import Given
from waypoint.records.reading import Reader, belongs_to, forks_prefix, next_name
from waypoint.service import captures, history, points, sessions
from waypoint.service.home import Home
from waypoint.service.inside import own
from waypoint.service.inside.printed import Printed, as_text
from waypoint.session.birth.rights import check_session_count
from waypoint.session.live.session import LiveSession

MOST_NAMED = 1000
"""How many checkpoints of its branch a session may make: named captures are never removed by age."""


def check_named(names: Reader, branch: str, name: str) -> None:
    """Raise StateConflict if `branch` has MOST_NAMED checkpoints and `name` would be one more. Reads all names."""
    refs = names.refs()
    kept = [ref.capture for ref in refs.values() if ref.kind == "checkpoint" and ref.capture is not None]
    if name in refs or len(kept) < MOST_NAMED:
        return
    own = {found.id for found in names.captures_of(kept, may_lack=True).values() if found.branch == branch}
    if sum(capture_id in own for capture_id in kept) >= MOST_NAMED:
        said = f"branch {branch} already has {MOST_NAMED} checkpoints; --force replaces one of them"
        raise StateConflict("create", f"checkpoint {name}", said, "run the command outside of the session")


@contextlib.contextmanager
def _no_names_of_others(names: Reader, branch: str, *wanted: str, instead: str = "") -> Iterator[None]:
    """Give one and the same reason for each new name in `wanted` that cannot be used, unless it is a checkpoint of
    `branch`: a session learns nothing about the names of others. `instead`: a name that the error proposes.
    """
    try:
        yield
    except StateConflict as error:
        refs = [ref for name in wanted if (ref := names.ref(name)) is not None]
        if error.code != "name-taken" or branch in wanted or any(belongs_to(names, ref, branch) for ref in refs):
            raise
        said = "it cannot be used for something new in this session"
        next_step = "choose another name" + (f", such as {instead}" if instead else "")
        raise StateConflict("create", error.on, said, next_step, code="name-taken") from None


def _tier(given: Given) -> WantedTier:
    return given.text("tier") or "auto"  # type: ignore[return-value]  # checked by the parser


async def checkpoint(home: Home, live: LiveSession, given: Given) -> Printed:
    name = given.text("name") or next_name(home.names, live.branch, within=True)
    await asyncio.to_thread(check_named, home.names, live.branch, name)
    request = CheckpointRequest(
        name=name,
        message=given.text("message") or "",
        tier=_tier(given),
        force=given.flag("force"),
    )
    below = f"{live.branch}/"
    instead = "" if name.startswith(below) else f"{below}{name}"
    with _no_names_of_others(home.names, live.branch, name, instead=instead):
        made = await captures.checkpoint_of(home, live.branch, request, within=True)
    said = f"checkpointed {made.name}  {made.capture}  {made.tier}  paused {made.paused_ms:.0f} ms"
    return Printed(_text([said], made), made)


async def point(home: Home, live: LiveSession, given: Given) -> Printed:
    told, path = None, given.text("conversation")
    if path is not None:  # the capture has the file itself
        told = Conversation(path=path, size=0, tail="", inside=True)
    made = await points.make(home, live.branch, PointRequest(label=given.text("label") or "", conversation=told))
    return Printed(_text([point_line(dataclasses.asdict(made))], made), made)


async def restore(home: Home, live: LiveSession, given: Given) -> Printed:
    capture, new = await own.capture(home, live.branch, given.required("name")), given.text("new")
    if new is not None:
        check_session_count(home.sessions.resources, 1)
        with _no_names_of_others(home.names, live.branch, new):
            made = (await captures.fork(home, ForkRequest(name=capture.id, branches=[new], tier=_tier(given)))).forks[0]
        return Printed(_text([new], made.session), made.session)
    only = given.text("only")
    request = RestoreRequest(
        name=capture.id,
        only=only,  # type: ignore[arg-type]  # checked by the parser
        lose_processes=given.flag("lose_processes"),
        tier=_tier(given),
    )
    session = await captures.restore(home, live.branch, request)
    return Printed(_text([live.branch, *replaced_lines(dataclasses.asdict(session))], session), session)


async def rewind(home: Home, live: LiveSession, given: Given) -> Printed:
    found, number = await points.points(home, live.branch, PointsQuery()), given.number("number")
    if number is None or given.flag("list"):
        return Printed(as_text(points_table(found)) if found else "", found)
    if number > len(found):
        said = f"{live.branch} has {len(found)} points"
        raise UnknownName("rewind", f"branch {live.branch} by {number}", said, "see them: waypoint rewind --list")
    point = found[number - 1]
    request = RestoreRequest(
        name=point.capture,
        only=given.text("only"),  # type: ignore[arg-type]  # checked by the parser
        lose_processes=given.flag("lose_processes"),
    )
    session = await captures.restore(home, live.branch, request)
    title = point.label or point.name or point.capture
    return Printed(
        _text([title, *replaced_lines(dataclasses.asdict(session))], session), {"point": point, "session": session}
    )


async def fork(home: Home, live: LiveSession, given: Given) -> Printed:
    name, count, prefix = given.required("name"), given.number("count"), given.text("prefix")
    if count is not None and prefix is None:
        prefix = forks_prefix(home.names, name)  # the request below may name the capture by its id
    check_session_count(home.sessions.resources, count if count is not None else len(given.texts("branches")))
    origin = name if name == live.branch else (await own.capture(home, live.branch, name)).id
    request = ForkRequest(name=origin, branches=given.texts("branches"), count=count, prefix=prefix, tier=_tier(given))
    with _no_names_of_others(home.names, live.branch, *request.branches):
        made = (await captures.fork(home, request)).forks
    facts = [
        {
            **{name: getattr(one, name) for name in ("branch", "pid", "ms")},
            **{name: getattr(one.session, name) for name in (*HEADINGS, "ports")},
            **NOT_RUN,
        }
        for one in made
    ]
    return Printed(_text([one.branch for one in made], *(one.session for one in made)), facts)


async def stop(home: Home, live: LiveSession, given: Given) -> Printed:
    name = given.text("checkpoint")
    request = StopRequest(checkpoint=name, keep_programs=name is None and not given.flag("files"))
    stopped = await sessions.stop(home, live.branch, request)
    return Printed(_text([stop_line(stopped)], stopped), [stopped])


async def undo(home: Home, live: LiveSession, given: Given) -> Printed:
    number = (await own.operation(home, live.branch, given.number("number"))).number
    may_lose = given.flag("lose_processes")
    if not may_lose:  # the user must agree to losses before the undo: its answer, which lists them, comes too late
        planned = (await history.undo(home, UndoRequest(number=number, dry_run=True))).undone
        if planned.lost:
            said = f"these would be lost: {'; '.join(map(text, planned.lost))}"
            next_step = f"to accept this: waypoint undo {number} --lose-processes"
            raise StateConflict(
                "undo", f"operation {number} ({planned.verb})", said, next_step, code="processes-would-be-lost"
            )
    done = await history.undo(home, UndoRequest(number=number, lose_processes=may_lose))
    assert done.operation is not None  # it is None only for a dry run
    undone = done.undone
    lines = [f"lost: {text(one)}" for one in undone.lost]
    lines += undone_lines(dataclasses.asdict(undone))
    printed = _text(lines, {"degraded": undone.degraded})
    if done.operation.ended:
        printed += f"to reverse this undo: waypoint undo {done.operation.number}\n"
    return Printed(printed, {**dataclasses.asdict(done.operation), "lost": undone.lost, "degraded": undone.degraded})


def _text(lines: Sequence[str], *answers: object) -> str:
    """The lines, and below them the warnings of these answers, which are facts or dictionaries."""
    found = [one if isinstance(one, dict) else dataclasses.asdict(one) for one in answers]  # type: ignore[call-overload]
    return as_text([*lines, *degraded_lines(*found)])
