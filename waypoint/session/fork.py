"""Forking: live sessions on new branches, each a copy of one capture."""

import asyncio
from collections.abc import Sequence

import msgspec

from waypoint.egress.published import Port
from waypoint.model.errors import UsageProblem
from waypoint.model.names import excludes, parse_name
from waypoint.model.records import Capture, Tier
from waypoint.model.verbs import MAX_FORKS
from waypoint.session.birth import attached_at
from waypoint.session.birth.attached_at import ALL_OF_IT, Back
from waypoint.session.birth.birth import Birth, plan_birth, size_of
from waypoint.session.checkpoint import Prepare, as_it_is_now
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.registry import Registry
from waypoint.session.start import bring_up
from waypoint.store.names import Names


async def fork(
    sessions: Registry,
    name: str,
    branches: Sequence[str],
    prepare: Prepare | None = None,
    back: Back = ALL_OF_IT,
) -> tuple[list[LiveSession], Capture]:
    """Start live sessions on the new `branches`, all of them or none, each a copy of the capture that `name` stands
    for. Returns the sessions and that capture. `back`: how much of it.

    If `name` is a live branch, its session is captured now, after `prepare`, and this capture is copied. Raises
    UsageProblem for `branches` that exclude each other or are too many, else as `checkpoint` and `start`.
    """
    _check_branches(branches)
    names = sessions.resources.names
    # Before the turns, too: else whoever asks for the name of a branch that exists would hold up that branch.
    _check_new(names, branches)
    async with sessions.turn(name, *branches):
        _check_new(names, branches)
        origin = await as_it_is_now(sessions, name, "fork", prepare)
        attached_at.check(origin, name, back.attach_at)
        births = await asyncio.to_thread(_plan, sessions.resources, origin, branches, back.tier)
        found = await bring_up(sessions, [birth.as_asked(back) for birth in births], "fork")
        for live_copy in found:
            live_copy.not_back = [*live_copy.not_back, *_unpublished(origin)]
        return found, origin


def _plan(resources: Resources, origin: Capture, branches: Sequence[str], tier: Tier | None) -> list[Birth]:
    """Looks at files."""
    size, processes = size_of(origin), origin.tier == "live" and tier in (None, "live")
    setting = msgspec.structs.replace(origin.setting, publish=[])
    return [plan_birth(resources, branch, origin, setting, size, processes=processes) for branch in branches]


def _unpublished(origin: Capture) -> list[str]:
    """In words, which ports do not lead into copies."""
    return [
        f"port {Port.parse(one).on}: not published, it stays with {origin.branch}" for one in origin.setting.publish
    ]


def _check_new(names: Names, branches: Sequence[str]) -> None:
    """Raise as `Names.check_new` if one of `branches` cannot be made."""
    for branch in branches:
        names.check_new(branch, "branch")


def too_many(on: str) -> UsageProblem:
    """The error for forks that cannot be made at once. `on`: what was asked for."""
    return UsageProblem("fork to", on, f"it takes 1 to {MAX_FORKS} branches at once", "fork several times")


def _check_branches(branches: Sequence[str]) -> None:
    for branch in branches:
        parse_name(branch)
    on = " ".join(branches[:3])
    if not 0 < len(branches) <= MAX_FORKS:
        raise too_many(on)
    for place, branch in enumerate(branches):
        for other in branches[:place]:
            if other == branch or excludes(branch, other):
                said = f"{other} is given twice" if other == branch else f"{other} and {branch} exclude each other"
                raise UsageProblem("fork to", on, said, "choose other names")
