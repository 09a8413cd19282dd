"""The differences between two captures, live sessions or the machine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from waypoint.capture.captures import HeldCapture
from waypoint.model.errors import UsageProblem
from waypoint.model.facts import ChangeFacts
from waypoint.model.names import MACHINE
from waypoint.model.requests import DiffRequest
from waypoint.service.home import Home
from waypoint.service.shapes import Pages
from waypoint.session.differences import compare
from waypoint.session.held import held_now

_PAGE = 256


async def diff(home: Home, request: DiffRequest) -> Pages[ChangeFacts]:
    """What differs from `one` to `other`; without `other`, what `one` has changed of the machine.

    The content of files is shown as far as the caller may read it on the machine. Raises UnknownName, NotAllowed,
    UsageProblem.
    """
    first, second = (MACHINE, request.one) if request.other is None else (request.one, request.other)
    if first == second:
        raise UsageProblem("compare", first, "it is compared with itself", "name two different states")
    async with _held(home, first) as before, _held(home, second) as after:
        found = await asyncio.to_thread(compare, home.sessions.resources, before, after, request)
    return (found[start : start + _PAGE] for start in range(0, len(found), _PAGE))


@contextlib.asynccontextmanager
async def _held(home: Home, name: str) -> AsyncIterator[HeldCapture | None]:
    if name == MACHINE:
        yield None
    else:
        async with held_now(home.sessions, name, "compare") as held:
            yield held
