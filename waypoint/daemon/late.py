"""Functions that are loaded when they are first called: most daemons never need them, and all would wait for them."""

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from waypoint.service.background.bugs import as_problem

Function = Callable[..., Awaitable[Any]]
called: set[str] = set()  # the places of the functions for which something stands in


def at(place: str) -> Function:
    """The function at `place`: its module below waypoint and its name in it, as `service.history:log`."""
    module, _, name = place.partition(":")
    found: Function = getattr(importlib.import_module(f"waypoint.{module}"), name)
    return found


async def loaded(place: str) -> Function:
    """As `at`, for the event loop: what must be imported is imported in a thread. That may take 50 ms, and a session
    may be standing still meanwhile. Raises Bug: no descriptor is left, or another version's files lie there by now.
    """
    try:
        if f"waypoint.{place.partition(':')[0]}" not in sys.modules:
            return await asyncio.to_thread(at, place)
        return at(place)
    except Exception as error:
        raise as_problem(error, f"waypoint.{place}") from error


def calling(place: str) -> Function:
    """What stands in for the function at `place`: it calls that with what it is called with."""
    called.add(place)

    async def call(*given: object) -> object:
        return await (await loaded(place))(*given)

    return call
