"""Making captures of sessions, and sessions of captures."""

import asyncio
import dataclasses
import time
from typing import Literal

from waypoint.capture.layers.layer import Staged
from waypoint.model.errors import UsageProblem, WaypointError
from waypoint.model.facts import (
    CheckpointFacts,
    ExchangedFacts,
    ForkFacts,
    ReplacedFacts,
    RestoredFacts,
    SessionFacts,
)
from waypoint.model.paths import quoted
from waypoint.model.records import Capture
from waypoint.model.requests import CheckpointRequest, ForkRequest, RestoreRequest
from waypoint.model.verbs import MAX_FORKS
from waypoint.service.durable.keeping import make_durable
from waypoint.service.home import Home
from waypoint.service.hooks.session_hooks import before_capture, run_hooks
from waypoint.session import checkpoint as checkpointing
from waypoint.session import fork as forking
from waypoint.session import lacking, session_facts
from waypoint.session import restore as restoring
from waypoint.session.birth.attached_at import Back
from waypoint.session.checkpoint import Loss
from waypoint.session.live.holding import holding

_SHOWN = 3


async def checkpoint(home: Home, branch: str, request: CheckpointRequest) -> CheckpointFacts:
    """Capture the session on `branch`, which goes on (unless `request.park`), and let a name stand for the capture.
    Raises as `checkpoint_of`.
    """
    return await checkpoint_of(home, branch, request, within=False)


async def checkpoint_of(
    home: Home, branch: str, request: CheckpointRequest, *, within: bool, attached: Staged | None = None
) -> CheckpointFacts:
    """As `checkpoint`. `within`: a process of the session asks. `attached`: what is to be attached to the capture.

    Raises UnknownName, StateConflict (not live, name taken), CannotCapture (tier), Failed. If only putting it into the
    store has failed (`request.wait`), the checkpoint is made.
    """
    begin = time.monotonic()
    tier = None if request.tier == "auto" else request.tier
    lose, park = request.lose_processes, request.park
    if lose and not park:
        raise UsageProblem("use", "--lose-processes", "the session goes on, and loses nothing", "leave it out")
    wish = checkpointing.Wish(request.name, tier, request.message, request.force, park, within, lose=lose)._replace(
        attached=attached
    )
    kept = await checkpointing.checkpoint(home.sessions, branch, wish, prepare=before_capture(home.profiles.now()))
    live = None if request.park else home.sessions.find(branch)
    failed = await run_hooks(live, "post-checkpoint", home.profiles.now()) if live is not None else []
    standing = home.names.standing(kept.id)
    if request.wait:
        try:
            standing = await make_durable(home, kept.id)
            failed += await _not_with_it(home, kept)
        except WaypointError as error:
            error.said += f" (the checkpoint {request.name} is made; it may not survive a power loss)"
            raise
    return CheckpointFacts(
        name=request.name,
        capture=kept.id,
        image=standing.image,
        tier=kept.tier,
        paused_ms=kept.paused_ms or 0.0,
        total_ms=round(1000 * (time.monotonic() - begin), 3),
        durable=standing.durable,
        degraded=[*kept.degraded, *failed],
    )


async def _not_with_it(home: Home, kept: Capture) -> list[str]:
    """In words, which files of the base a capture in the store needs, and does not have with it."""
    async with holding(home.captures, kept, recalls=False) as (held,):
        found = held.base.left_out
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return [f"its processes need files as the machine has them now: {'; '.join(found[:_SHOWN])}{more}"] if found else []


async def restore(home: Home, branch: str, request: RestoreRequest) -> SessionFacts:
    """Bring a capture back in place: the session on `branch` is replaced, or started if it is not live.

    Raises UsageProblem, UnknownName, StateConflict, CannotCapture, Failed; then the old session goes on as it was.
    """
    failed: list[str] = []
    if request.tier is not None and request.only is not None:
        raise UsageProblem("restore with", "--tier", "--only brings back no more than its aspect", "leave it out")
    if request.attach_at and request.only is not None:
        raise UsageProblem("restore with", "--attach-at", "--only brings back no more than its aspect", "leave it out")
    prepare = before_capture(home.profiles.now())
    is_now = restoring.stands_for_now(home.sessions, branch, request.name)
    if request.only == "shell":
        restored = await restoring.restore_shell(home.sessions, branch, request.name, prepare)
    elif request.only == "files":
        restored = await restoring.restore_files(home.sessions, branch, request.name, prepare)
    else:
        tier = f" --tier {request.tier}" if request.tier is not None else ""
        back = Back(request.tier, request.attach_at)
        at = "".join(f" --attach-at {quoted(f'{kind}={path}')}" for kind, path in request.attach_at.items())
        loss = Loss(request.lose_processes, f"waypoint restore {request.name} -b {branch}{tier}{at} --lose-processes")
        restored = await restoring.restore(home.sessions, branch, request.name, loss, back, prepare)
        failed = await run_hooks(restored.live, "post-restore", home.profiles.now())
    kept = restored.replaced
    replaced: ReplacedFacts | None = {"capture": kept.id, "tier": kept.tier} if kept else None
    found = session_facts.of_start(restored.live)
    if request.only == "shell" or restored.exchanged is not None:  # its programs go on
        found = dataclasses.replace(found, respawned=None, offered=None, lost=None)
    return dataclasses.replace(
        found,
        degraded=[*restored.degraded, *failed],
        restored=brought_back(home, request.name, restored.origin.id, is_now=is_now),
        replaced=replaced,
        exchanged=_exchanged(restored.exchanged),
    )


def brought_back(home: Home, name: str, capture: str, *, is_now: bool) -> RestoredFacts:
    """`capture` was brought back for `name`. `is_now`: it was made for that."""
    ref = home.names.ref(name)
    of_branch: Literal["last", "then"] = "last" if ref is not None and ref.kind == "branch" else "then"
    return {"capture": capture, "name": name, "moment": "now" if is_now else of_branch}


def _exchanged(done: restoring.Exchanged | None) -> ExchangedFacts | None:
    if done is None:
        return None
    return {"changed": done.files.changed, "written_bytes": done.files.written_bytes, "paused_ms": done.paused_ms}


async def restore_there(home: Home, request: RestoreRequest) -> SessionFacts:
    """As `restore`, on the branch that the capture was taken on or, if `request.name` is a branch, on this branch."""
    return await restore(home, restoring.branch_of(home.names, request.name), request)


async def fork(home: Home, request: ForkRequest) -> list[ForkFacts]:
    """Live sessions on new branches, all of them or none. Raises as `checkpoint`."""
    begin = time.monotonic()
    back, prepare = Back(request.tier, request.attach_at), before_capture(home.profiles.now())
    lives, origin = await forking.fork(home.sessions, request.name, _branches_of(request), prepare, back)
    failed = await asyncio.gather(*(run_hooks(live, "post-restore", home.profiles.now()) for live in lives))
    taken_ms = round(1000 * (time.monotonic() - begin), 3)
    return [
        ForkFacts(
            branch=live.branch,
            pid=live.record.init_pid,
            ms=taken_ms,
            session=dataclasses.replace(session_facts.of_start(live), degraded=[*lacking.of_copy(live, origin), *said]),
        )
        for live, said in zip(lives, failed, strict=True)
    ]


def _branches_of(request: ForkRequest) -> list[str]:
    """The names of the branches that are to be made. Raises UsageProblem; whether each is legal is seen later."""
    name, branches, count, prefix = request.name, request.branches, request.count, request.prefix
    if bool(branches) == (count is not None):
        said = "branches and a number of them exclude each other" if branches else "neither branches nor a number given"
        raise UsageProblem("fork", repr(name), said, "name the branches, or give -n N")
    if count is None:
        if prefix is not None:
            raise UsageProblem("use", "--prefix", "it goes with -n", "give the branches their whole names")
        return list(branches)
    if count > MAX_FORKS:
        raise forking.too_many(f"{count} branches")
    return [f"{prefix if prefix is not None else name}-{number}" for number in range(1, count + 1)]
