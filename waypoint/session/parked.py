"""Branches that were parked because nobody used their sessions (`shell --idle-park`), and their return.

The tip of such a branch has the reason `idle`. Every request that needs the session brings it back first, under the
turn (lock) of the branch, so two requests at once start it once. It counts as the same session for `--ttl`.
"""

import asyncio
import time

import msgspec

from waypoint.branch.undo import RETURN
from waypoint.model.records import Capture, Setting
from waypoint.session.birth.birth import plan_birth, size_of
from waypoint.session.birth.rights import check_name
from waypoint.session.birth.tiers import choose
from waypoint.session.registry import Registry
from waypoint.session.start import Started, bring_up


def ends_at(setting: Setting) -> float | None:
    """When a session with this setting is to end, in seconds since the epoch; None: never by itself."""
    return setting.since + setting.ttl if setting.ttl else None


def idle_tip(sessions: Registry, branch: str) -> Capture | None:
    """The capture of the parked session that the next request brings back; None if the branch has none."""
    names = sessions.resources.names
    ref = names.ref(branch)
    if ref is None or ref.kind != "branch" or ref.capture is None:
        return None
    tip = names.captures_of([ref.capture], may_lack=True).get(ref.capture)
    if tip is None or tip.reason != "idle":
        return None
    end = ends_at(tip.setting)
    return tip if end is None or end > time.time() else None


async def bring_back(sessions: Registry, branch: str) -> Started:
    """Return the session on `branch`, which is brought back if it is parked. Raises UnknownName, StateConflict if the
    branch has neither a live nor a parked session, NotAllowed.
    """
    check_name(sessions.resources, branch, "continue")
    async with sessions.turn(branch):
        check_name(sessions.resources, branch, "continue")
        found = await sessions.settled(branch)
        tip = idle_tip(sessions, branch) if found is None else None
        if tip is None:
            live = found or sessions.get(branch)
            live.touch()
            return Started(live, is_new=False)
        await asyncio.to_thread(sessions.resources.places.follow_host)
        chosen = await asyncio.to_thread(choose, sessions.resources, tip, None)
        birth = plan_birth(sessions.resources, branch, tip, tip.setting, size_of(tip), chosen)
        setting = msgspec.structs.replace(birth.row.setting, since=tip.setting.since)
        birth = birth._replace(row=msgspec.structs.replace(birth.row, setting=setting))
        (live,) = await bring_up(sessions, [birth], RETURN)
        live.touch()
        return Started(live, is_new=True, origin=tip)
