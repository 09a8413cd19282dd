"""Parking: ending a session so that its programs are kept (`stop`, `shell --idle-park`, `--ttl`), and the return of
those that were parked because nobody used them.

The tip of such a branch has the reason `idle`. Every request that needs the session brings it back first, under the
turn (lock) of the branch, so two requests at once start it once. It counts as the same session for `--ttl`.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from waypoint.branch.undo import RETURN
from waypoint.capture.layers.layer import CaptureOptions
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import CannotCapture, Failed
from waypoint.model.records import Capture, Reason, Setting
from waypoint.session.birth.birth import plan_birth, size_of
from waypoint.session.birth.rights import check_name
from waypoint.session.birth.tiers import choose
from waypoint.session.checkpoint import LossConsent, Prepare, checkpoint
from waypoint.session.live.session import LiveSession
from waypoint.session.registry import Registry
from waypoint.session.start import PATIENCE_S, Started, bring_up
from waypoint.session.start import stop as end


async def park(sessions: Registry, branch: str, reason: Reason, prepare: Prepare) -> Capture:
    """End the session on `branch` and keep its processes; if they cannot be captured, the command lines of its
    programs, with the reason in `degraded` of the capture. `prepare`: awaited before each capture. Raises
    CannotCapture, Failed; then the session continues.
    """
    options = CaptureOptions(reason=reason, keep_frozen=True)
    consent = LossConsent(agreed=False, command=f"waypoint stop --files {branch}")
    try:
        return (await checkpoint(sessions, branch, options, consent, prepare=prepare)).capture
    except CannotCapture as error:
        why = degradation("no-processes", error.code, error.said)

    async def prepare_again(live: LiveSession) -> Sequence[Degradation]:
        return [*await prepare(live), why]

    consent = consent._replace(agreed=True)
    return (await checkpoint(sessions, branch, options, consent, prepare=prepare_again)).capture


class Stopped(NamedTuple):
    """`degraded`: what the capture lacks of the session."""

    capture: Capture
    degraded: Sequence[Degradation]


async def stop(sessions: Registry, branch: str, prepare: Prepare) -> Stopped:
    """End the session on `branch`, and keep as much of it as possible: as `park` does, or only the files."""
    why: Sequence[Degradation] = ()
    if branch not in sessions.unreachable:
        sessions.get(branch)
        check_name(sessions.resources, branch, "stop")
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await held.enter_async_context(sessions.turn(branch))
            except TimeoutError:
                why = [degradation("no-processes", detail="another request kept the session busy")]
            else:
                try:
                    capture = await park(sessions, branch, "stopped", prepare)
                except (CannotCapture, Failed) as error:
                    why = [degradation("no-processes", error.code, error.said)]
                except OSError as error:
                    why = [degradation("no-processes", detail=error.strerror or str(error))]
                else:
                    return Stopped(capture, capture.degraded)
    kept = await end(sessions, branch, discard=False)
    assert kept is not None  # it is None only if the files are discarded
    return Stopped(kept, [*kept.degraded, *why])


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
