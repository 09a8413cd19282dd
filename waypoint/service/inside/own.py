"""The captures and operations of a session's own branch. The session's processes may see and use only these."""

import asyncio
import contextlib
import dataclasses

from waypoint.branch.graph import walk_back
from waypoint.branch.undo import BY_ITSELF, is_from_within
from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.facts import CaptureFacts
from waypoint.model.records import Capture, Operation
from waypoint.service.home import Home


def tip(home: Home, branch: str) -> Capture | None:
    """The tip of `branch`; None if nothing was captured on it yet."""
    ref = home.names.ref(branch)
    return home.names.capture(ref.capture) if ref and ref.capture else None


async def capture(home: Home, branch: str, name: str) -> Capture:
    """The capture that `name` stands for. Raises UnknownName also if it is not in the history of `branch`.

    Reads in a thread, since it may decode the whole history of the branch.
    """
    return await asyncio.to_thread(_find_capture, home, branch, name)


def in_sight(home: Home, branch: str, capture: CaptureFacts) -> CaptureFacts:
    """The facts about a capture in the history of `branch` without the names of other branches."""
    refs = {name: home.names.ref(name) for name in capture.names}
    names = [name for name, ref in refs.items() if name == branch or ref is None or ref.kind != "branch"]
    return dataclasses.replace(capture, names=names)


def _find_capture(home: Home, branch: str, name: str) -> Capture:
    # A process learns nothing about other branches: neither their names nor whether there are any.
    with contextlib.suppress(UnknownName):
        found = home.names.resolve(name, branch)
        start = tip(home, branch)
        if any(capture.id == found.id for capture in walk_back(home.names, [start] if start else [])):
            return found
    raise UnknownName(
        "use", repr(name), f"it is not in the history of {branch}", "'waypoint log' lists the captures of this branch"
    )


async def operation(home: Home, branch: str, number: int | None) -> Operation:
    """The operation of `branch` with this number; None: the last one that was not undone, except starts of sessions
    on `branch`, whose undo would end the session that asks. Raises UnknownName, StateConflict if none is left.
    """
    if number is not None:
        numbered = home.names.operation(number)
        if numbered is None or not is_from_within(home.names, numbered, branch):
            said = f"no operation of {branch} has this number"
            raise UnknownName("undo", f"operation {number}", said, "see 'waypoint op log'")
        return numbered

    def is_meant(one: Operation) -> bool:
        is_own = one.point is None and one.verb not in BY_ITSELF and is_from_within(home.names, one, branch)
        return is_own and one.sessions.get(branch) != (False, True)

    found = await asyncio.to_thread(home.names.last_to_undo, is_meant)
    if found is None:
        said = "no operation is left to undo"
        raise StateConflict("undo", f"the last operation of branch {branch}", said, "see 'waypoint op log'")
    return found
