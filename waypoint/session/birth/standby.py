"""Standbys: a frozen copy of a capture, restored before somebody asks for it, becomes a session in some milliseconds.

A standby is a session that is complete, except that its processes have not run yet, and that it has no network, no
branch and no published port. Its row in names.db is not ready, so the next daemon ends it like a start that was not
finished.
"""

import asyncio
import time

import msgspec

from waypoint.capture.steps import Step, reach_in_loop
from waypoint.launch.templates import LEAST_BYTES
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, ProcessesLayer
from waypoint.session.birth import birth as births
from waypoint.session.birth import revive
from waypoint.session.birth.tiers import choose
from waypoint.session.live.resources import Resources, holding
from waypoint.session.live.standbys import Standby, as_standby


def can_stand(origin: Capture) -> bool:
    """Whether a copy of `origin` may stand ready: it shares nothing with the machine, takes none of the machine's
    inotify instances, which are few, and is small. Forks of large captures share the memory of a template.
    """
    layer, setting = origin.layer(ProcessesLayer), origin.setting
    if layer is None or layer.awaited or layer.watchers or size_of(origin) >= LEAST_BYTES:
        return False
    return origin.tier == "live" and setting.net != "host" and not setting.binds


def size_of(origin: Capture) -> int:
    """A bound of the memory that a standby takes."""
    layer = origin.layer(ProcessesLayer)
    return layer.size_bytes if layer is not None else 0


async def make(resources: Resources, origin: Capture, *, timeless_only: bool) -> Standby | None:
    """Restore a standby of `origin`, for which `can_stand` is true. None if the processes have connections, if the
    machine has changed files of the base that they use, or with `timeless_only` if they could notice the time. After a
    failure nothing of it is left.
    """
    async with holding(resources.captures, origin) as (held,):
        if await asyncio.to_thread(lambda: held.has_connections() or held.has_changed_base()):
            return None
        is_timeless = await asyncio.to_thread(held.is_timeless)
        if timeless_only and not is_timeless:
            return None
        chosen = await asyncio.to_thread(choose, resources, origin, "live")
        branch, setting = f"standby {new_id()}", as_standby(origin.setting)  # no user can have a branch of this name
        size = births.size_of(origin)
        birth = await asyncio.to_thread(births.plan_birth, resources, branch, origin, setting, size, chosen)
        row = msgspec.structs.replace(birth.row, stands_for=origin.id, setting=setting)
        birth = birth._replace(row=row)
        mounts = await asyncio.to_thread(resources.places.follow_host)
        await births.reserve(resources, [birth])
        try:
            bounds = await asyncio.to_thread(births.make_tree_and_group, resources, birth)
            entry = await asyncio.to_thread(revive.stand_by, resources, row, origin, size, bounds)
            await reach_in_loop(Step.STANDING)
        except BaseException:
            await births.undo(resources, row)
            raise
    return Standby(origin, entry, size, mounts, is_timeless, time.monotonic())


async def end(resources: Resources, standby: Standby) -> None:
    """End a standby that was taken out of `Standbys`."""
    await births.undo(resources, standby.row)
