"""Checkpoints, forks and restores behind the routes: implements `service.Captures`."""

import time

import msgspec

from waypoint.model.errors import CannotCapture, UsageProblem
from waypoint.model.records import Capture
from waypoint.model.requests import (
    CheckpointFacts,
    CheckpointRequest,
    ForkFacts,
    ForkRequest,
    RestoreRequest,
    SessionFacts,
    StopRequest,
)
from waypoint.session import facts
from waypoint.session.moments import Moments, Wish


class HomeCaptures:
    """Of one home."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments

    async def checkpoint(self, branch: str, request: CheckpointRequest) -> CheckpointFacts:
        if request.tier == "respawn":
            said = "this version starts no programs again: it knows the tiers live and files"
            raise CannotCapture("checkpoint", f"branch {branch}", said, "leave out --tier")
        begin = time.monotonic()
        tier = None if request.tier == "auto" else request.tier
        wish = Wish(request.name, tier, request.message, request.force, request.park)
        kept = await self._moments.checkpoint(branch, wish)
        return CheckpointFacts(
            name=request.name,
            capture=kept.id,
            image=None,
            tier=kept.tier,
            paused_ms=kept.paused_ms or 0.0,
            total_ms=round(1000 * (time.monotonic() - begin), 3),
            durable=False,
            degraded=kept.degraded,
        )

    async def park(self, branch: str, request: StopRequest) -> Capture:
        """A stop that makes a checkpoint first."""
        if request.discard:
            said = "what a checkpoint keeps cannot be thrown away as well"
            raise UsageProblem("stop", f"branch {branch}", said, "leave out --discard or --checkpoint")
        return await self._moments.checkpoint(branch, Wish(request.checkpoint, park=True))

    async def restore(self, branch: str, request: RestoreRequest) -> SessionFacts:
        degraded: list[str] = []
        if request.only == "shell":
            live, degraded = await self._moments.restore_shell(branch, request.name)
        elif request.only == "files":
            live = await self._moments.restore_files(branch, request.name)
        else:
            live = await self._moments.restore(branch, request.name)
        return msgspec.structs.replace(facts.of_start(live), degraded=degraded)

    async def fork(self, request: ForkRequest) -> list[ForkFacts]:
        begin = time.monotonic()
        lives = await self._moments.fork(request.name, _branches_of(request))
        taken_ms = round(1000 * (time.monotonic() - begin), 3)
        return [ForkFacts(branch=live.branch, pid=live.record.init_pid, ms=taken_ms) for live in lives]


def _branches_of(request: ForkRequest) -> list[str]:
    if (request.count is None) == (not request.branches):
        said = "either branches or a count must be given"
        raise UsageProblem("fork", repr(request.name), said, "name the branches, or give -n N")
    if request.branches:
        return list(request.branches)
    prefix = request.prefix if request.prefix is not None else request.name
    return [f"{prefix}-{number}" for number in range(1, (request.count or 0) + 1)]
