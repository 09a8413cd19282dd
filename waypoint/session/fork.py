"""Forking: live sessions on new branches, each a copy of one capture."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from waypoint.model.errors import UsageProblem
from waypoint.model.names import excludes, parse_name
from waypoint.model.records import Capture, Tier
from waypoint.model.verbs import MAX_FORKS
from waypoint.records.names import Names
from waypoint.session.birth.birth import Birth, plan_birth, size_of
from waypoint.session.birth.rights import check_name, check_origin, restricted
from waypoint.session.birth.tiers import choose
from waypoint.session.checkpoint import Prepare, capture_tip
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.registry import Registry
from waypoint.session.start import bring_up


async def fork(
    sessions: Registry,
    name: str,
    branches: Sequence[str],
    prepare: Prepare | None = None,
    attach_at: Mapping[str, str] = {},
    tier: Tier | None = None,
) -> tuple[list[LiveSession], Capture]:
    """Start live sessions on the new `branches`, all of them or none, each a copy of the capture `name`. If `name` is a
    live branch, await `prepare` and capture its session now. `attach_at`: where attached layers are placed, by kind.
    `tier`: None takes the best that works here. Return the sessions and the capture.
    """
    _check_branches(branches)
    names = sessions.resources.names
    # Checked here, too, so that a request with the name of an existing branch never takes the turn of that branch.
    _check_new(names, branches)
    async with sessions.turn(name, *branches):
        _check_new(names, branches)
        check_name(sessions.resources, name, "fork")
        live = sessions.find(name)
        if live is not None:  # check the caller's rights before the session is captured
            await asyncio.to_thread(restricted, sessions.resources, live.record.row.setting)
        required: Tier | None = "live" if tier == "live" else None
        origin = await capture_tip(sessions, name, "forked", prepare, required) or names.resolve(name)
        check_origin(sessions.resources, origin.setting.user, "fork", name)
        births = await asyncio.to_thread(_plan, sessions.resources, origin, branches, tier)
        births = [birth._replace(attach_at=attach_at) for birth in births]
        return await bring_up(sessions, births, "fork"), origin


def _plan(resources: Resources, origin: Capture, branches: Sequence[str], tier: Tier | None) -> list[Birth]:
    size, chosen = size_of(origin), choose(resources, origin, tier)
    free = [msgspec.structs.replace(one, host=0) for one in origin.setting.publish]
    setting = msgspec.structs.replace(origin.setting, publish=free)
    return [plan_birth(resources, branch, origin, setting, size, chosen) for branch in branches]


def _check_new(names: Names, branches: Sequence[str]) -> None:
    for branch in branches:
        names.check_new(branch, "branch")


def too_many(on: str) -> UsageProblem:
    return UsageProblem("fork to", on, f"one fork starts 1 to {MAX_FORKS} branches", "fork several times")


def _check_branches(branches: Sequence[str]) -> None:
    for branch in branches:
        parse_name(branch)
    on = " ".join(branches[:3])
    if not 0 < len(branches) <= MAX_FORKS:
        raise too_many(on)
    for place, branch in enumerate(branches):
        for other in branches[:place]:
            if other == branch or excludes(branch, other):
                both = f"{other} and {branch} cannot both exist, like a file and a folder of the same name"
                said = f"{other} is given twice" if other == branch else both
                raise UsageProblem("fork to", on, said, "choose other names")
