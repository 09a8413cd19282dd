"""Handing a capture over: what another agent or person needs to go on with it."""

import asyncio
import itertools

from waypoint.branch.graph import walk_back
from waypoint.capture.captures import HeldCapture
from waypoint.model.errors import Failed, UsageProblem
from waypoint.model.facts import ChangeFacts, HandoffFacts, StepFacts
from waypoint.model.records import Capture
from waypoint.model.requests import DiffRequest
from waypoint.model.times import iso_time
from waypoint.processes.respawn import redact
from waypoint.service import history
from waypoint.service.home import Home
from waypoint.service.points import points_of
from waypoint.session.birth import rights
from waypoint.session.differences import compare
from waypoint.terminal.plain import plain_lines
from waypoint.terminal.view_filter import open_view

_OUTPUT_BYTES, _OUTPUT_LINES = 64 << 10, 60
_MOST_FILES = 100
_MOST_ANCESTORS, _MOST_STEPS = 200, 20


async def handoff(home: Home, name: str) -> HandoffFacts:
    """What is needed to go on with the capture `name`; of a branch with its last capture. Raises UnknownName,
    NotAllowed, StoreDamaged.
    """
    origin = home.names.resolve(name)
    rights.check_origin(home.sessions.resources, origin.setting.user, "hand over", name)
    shown = await history.show(home, origin.id)
    read = await asyncio.to_thread(_read, home, origin)
    output, files, count, said = read
    return HandoffFacts(
        name=name,
        capture=shown,
        live=name in home.sessions.running,
        output=output,
        files=files,
        file_count=count,
        files_said=said,
        steps=await asyncio.to_thread(_steps, home, origin),
    )


def _read(home: Home, origin: Capture) -> tuple[list[str], list[ChangeFacts], int, str]:
    """The lines of output, the changed files and their number, and why they are not known."""
    with home.captures.hold(origin) as held:
        lines = _output(held)
        try:
            files = _changed(home, held, ignore=False)
            count = len(files)
            if count > _MOST_FILES:
                files = _changed(home, held, ignore=True)[:_MOST_FILES]
        except (Failed, UsageProblem, OSError) as error:
            return lines, [], 0, str(error)
    return lines, files, count, ""


def _output(held: HeldCapture) -> list[str]:
    ring = held.ring()
    if ring is None:
        return []
    try:
        position = max(ring.start, ring.end - _OUTPUT_BYTES)
        view = open_view(ring, position, ())
        shown = view.feed(ring.copy(position, ring.end)) + view.finish()
    finally:
        ring.close()
    return [redact.argument(line) for line in plain_lines(shown.decode(errors="replace"), _OUTPUT_LINES)]


def _changed(home: Home, held: HeldCapture, *, ignore: bool) -> list[ChangeFacts]:
    request = DiffRequest(one=held.capture.id, lines=False, ignore=ignore)
    found = compare(home.sessions.resources, None, held, request)
    return [one for one in found if one.type != "folder"]


def _steps(home: Home, origin: Capture) -> list[StepFacts]:
    """What led to the capture, the newest first."""
    sees = rights.may_see(home.sessions.resources)
    walked = itertools.islice(walk_back(home.names, [origin]), _MOST_ANCESTORS)
    ancestors = {one.id: one for one in walked if sees(one.setting.user)}
    names, points = home.names.names_of_all(list(ancestors)), points_of(home.names, ancestors)
    steps = (
        StepFacts(
            capture=one.id,
            at=iso_time(one.created),
            names=names[one.id],
            message=redact.argument(one.message),
            labels=[redact.argument(point.label) for point in points[one.id] if point.label != one.message],
            commands=[redact.script(line) for point in points[one.id] for line in point.commands],
        )
        for one in ancestors.values()
    )
    told = (one for one in steps if one["names"] or one["message"] or one["labels"] or one["commands"])
    return list(itertools.islice(told, _MOST_STEPS))
