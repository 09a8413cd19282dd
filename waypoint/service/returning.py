"""The sessions that requests need: live ones, and parked ones, which are brought back."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from waypoint.model.activity import ParkEvent
from waypoint.model.conditions import Degradation, facts_of
from waypoint.model.outcomes import HEADINGS
from waypoint.model.records import User
from waypoint.model.streams import Inlet, Outlet
from waypoint.service.home import Home
from waypoint.service.session_hooks import run_hooks
from waypoint.service.shapes import Stream
from waypoint.session import parked, session_facts
from waypoint.session.birth import rights
from waypoint.session.live.session import LiveSession
from waypoint.session.losses import copy_losses

Check = Callable[[User], object]
"""Raises if the caller may not use a session of this user."""


class Reached(NamedTuple):
    """`losses`: what a session that was brought back lacks. `said`: the fields of an answer that report them; empty if
    nothing is lacking.
    """

    live: LiveSession
    losses: list[Degradation]
    said: dict[str, object]


async def reach(home: Home, branch: str, check: Check) -> Reached:
    """The session on `branch`. A parked one is brought back, if `check` lets the caller use it. Raises UnknownName,
    StateConflict if there is none, and as `check`.
    """
    sessions = home.sessions
    live = sessions.find(branch)
    if live is not None and not live.is_parking:
        check(live.record.row.setting.user)
        live.touch()
        return Reached(live, [], {})
    tip = parked.idle_tip(sessions, branch) if live is None else None
    if live is not None or tip is not None:
        check((live.record.row if live is not None else tip).setting.user)  # type: ignore[union-attr]
        return await _bring_back(home, branch)
    live = sessions.get(branch)
    check(live.record.row.setting.user)
    return Reached(live, [], {})


async def _bring_back(home: Home, branch: str) -> Reached:
    live, is_new, origin = await parked.bring_back(home.sessions, branch)
    if not is_new or origin is None:
        return Reached(live, [], {})
    tier = "live" if live.record.origin else "files" if live.restarted is None else "respawn"
    home.events.publish(ParkEvent, change="returned", branch=branch, why="idle", capture=origin.id, tier=tier)
    losses = [*copy_losses(live, origin), *await run_hooks(live, "post-restore")]
    facts = dataclasses.replace(session_facts.of_start(live), degraded=facts_of(losses) or None)
    said = {name: found for name in HEADINGS if (found := getattr(facts, name))}
    return Reached(live, losses, {"branch": branch, **said} if said else {})


def reporting(reached: Reached, stream: Stream, *, at_once: bool = False) -> Stream:
    """`stream`, whose end also reports what the session lacks since it was brought back. `at_once`: a note at the
    beginning reports that.
    """
    if not reached.said:
        return stream

    async def report(inlet: Inlet, outlet: Outlet) -> dict[str, object]:
        if at_once:
            await outlet.note({"returned": reached.said})
            return await stream(inlet, outlet)
        return {**await stream(inlet, outlet), "returned": reached.said}

    return report


async def returned(home: Home, branch: str, tried: str) -> list[Degradation]:
    """Bring the session on `branch` back if it is parked. Returns what it lacks since then. Raises NotAllowed."""
    live = home.sessions.find(branch)
    if (live is None or live.is_parking) and (live is not None or parked.idle_tip(home.sessions, branch) is not None):
        rights.check_name(home.sessions.resources, branch, tried)
        return (await _bring_back(home, branch)).losses
    if live is not None:
        live.touch()
    return []
