"""Forking: live sessions on new branches, each a copy of one capture."""

from collections.abc import Sequence

from waypoint.model.errors import UsageProblem
from waypoint.model.names import excludes, parse_name
from waypoint.model.records import Capture
from waypoint.session.birth.birth import plan_birth, size_of
from waypoint.session.checkpoint import capture_tip
from waypoint.session.live.session import LiveSession
from waypoint.session.registry import Registry
from waypoint.session.start import bring_up

MAX_FORKS = 256


async def fork(sessions: Registry, name: str, branches: Sequence[str]) -> tuple[list[LiveSession], Capture]:
    """Start live sessions on the new `branches`, all of them or none, each a copy of the capture that `name` stands
    for. Returns the sessions and that capture.

    If `name` is a live branch, its session is captured now, and this capture is copied. Raises UsageProblem for
    `branches` that exclude each other or are too many, else as `checkpoint` and `start`.
    """
    _check_branches(branches)
    names = sessions.resources.names
    async with sessions.turn(name, *branches):
        with names.change("check") as change:
            for branch in branches:
                change.check_free(branch, "branch")
        origin = await capture_tip(sessions, name, "forked") or names.resolve(name)
        births = [
            plan_birth(branch, origin, origin.setting, size_of(origin), processes=origin.tier == "live")
            for branch in branches
        ]
        return await bring_up(sessions, births, "fork"), origin


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
