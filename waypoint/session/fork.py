"""Forking: live sessions on new branches, each a copy of one capture."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from waypoint.model.errors import UsageProblem
from waypoint.model.names import excludes, parse_name
from waypoint.model.records import Capture, Tier
from waypoint.model.requests import ForkRequest
from waypoint.model.verbs import MAX_FORKS
from waypoint.records.names import Names
from waypoint.session.birth.birth import Birth, Failures, plan_birth, size_of
from waypoint.session.birth.rights import check_name, check_origin, restricted
from waypoint.session.birth.setting import limits_of
from waypoint.session.birth.tiers import choose
from waypoint.session.checkpoint import Prepare, capture_tip
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.registry import Registry
from waypoint.session.start import bring_up


class Wish(NamedTuple):
    """`tier`: None takes the best that works here. `attach_at`: where attached layers are placed, by kind. `limits`: a
    request with the limits of the sessions. `failures`: as for bring_up_all.
    """

    tier: Tier | None = None
    attach_at: Mapping[str, str] = MappingProxyType({})
    limits: ForkRequest | None = None
    failures: Failures | None = None


NO_WISH = Wish()


async def fork(
    sessions: Registry,
    name: str,
    branches: Sequence[str],
    prepare: Prepare | None = None,
    wish: Wish = NO_WISH,
) -> tuple[list[LiveSession], Capture]:
    """Start live sessions on the new `branches`, each a copy of the capture `name`. If `name` is a live branch, await
    `prepare` and capture its session now. Return the sessions and the capture.
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
        required: Tier | None = "live" if wish.tier == "live" else None
        origin = await capture_tip(sessions, name, "forked", prepare, required) or names.resolve(name)
        origin = await asyncio.to_thread(sessions.resources.captures.settled, origin)
        check_origin(sessions.resources, origin.setting.user, "fork", name)
        births = await asyncio.to_thread(_plan, sessions.resources, origin, branches, wish)
        return await bring_up(sessions, births, "fork", wish.failures), origin


def _plan(resources: Resources, origin: Capture, branches: Sequence[str], wish: Wish) -> list[Birth]:
    size, chosen = size_of(origin), choose(resources, origin, wish.tier)
    free = [msgspec.structs.replace(one, host=0) for one in origin.setting.publish]
    limits = origin.setting.limits if wish.limits is None else limits_of(wish.limits, origin.setting.limits)
    setting = msgspec.structs.replace(origin.setting, publish=free, limits=limits)
    births = [plan_birth(resources, branch, origin, setting, size, chosen) for branch in branches]
    return [birth._replace(attach_at=wish.attach_at) for birth in births]


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
