"""Proving captures: the processes are restored beside the running sessions, compared with the capture, and removed.

The restored processes never run, their network leads nowhere, and they have a copy of the files. So a proof changes
nothing outside of itself.
"""

import asyncio
import time

import msgspec

from waypoint.capture.captures import HeldCapture
from waypoint.capture.steps import Step, reach_in_loop
from waypoint.model.errors import CannotCapture, WaypointError, as_text
from waypoint.model.ids import new_id
from waypoint.model.records import MOST_DIFFERENCES, Capture, Proof
from waypoint.processes.criu.causes import CriuFailed
from waypoint.processes.criu.comparison import Difference
from waypoint.session.birth import birth as births
from waypoint.session.birth import revive
from waypoint.session.birth.birth import Birth
from waypoint.session.birth.tiers import choose
from waypoint.session.live.resources import Resources, holding


async def prove(resources: Resources, origin: Capture) -> Proof:
    """Restore the processes of `origin` without running them, compare them with the capture, and record the result.
    Whatever prevents the restore is part of the result. Raises UnknownName if the content of `origin` was removed.
    """
    async with holding(resources.captures, origin) as (held,):
        begun, start = time.time(), time.monotonic()
        found, code, said = list[Difference](), "", ""
        try:
            found = await _differences(resources, held)
        except WaypointError as error:
            code, said = error.code, f"{error.said} {error.on}" if isinstance(error, CriuFailed) else error.said
        proof = Proof(
            at=begun,
            ms=round(1000 * (time.monotonic() - start), 3),
            code=code or ("differs" if found else ""),
            said=as_text(said),
            differences=tuple(
                Difference(pid, fd, as_text(captured), as_text(restored))
                for pid, fd, captured, restored in found[:MOST_DIFFERENCES]
            ),
        )
        await asyncio.to_thread(_record, resources, origin, proof)
        return proof


def _record(resources: Resources, origin: Capture, proof: Proof) -> None:
    with resources.names.change("prove") as change:
        change.set_standing(origin.id, msgspec.structs.replace(change.standing(origin.id), proof=proof))


async def _differences(resources: Resources, held: HeldCapture) -> list[Difference]:
    origin = held.capture
    chosen = await asyncio.to_thread(choose, resources, origin, "live")
    await asyncio.to_thread(_check_outside, held)
    branch = f"proof {new_id()}"  # no user can have a branch of this name; each proof at the same time needs another
    birth = births.plan_birth(resources, branch, origin, origin.setting, births.size_of(origin), chosen)

    async def restore_and_compare(resources: Resources, birth: Birth) -> list[Difference]:
        await asyncio.to_thread(births.make_tree_and_group, resources, birth)
        pids = await asyncio.to_thread(revive.restore_frozen, resources, birth.row, held, birth.size)
        await reach_in_loop(Step.RESTORED)
        return await asyncio.to_thread(held.differences, pids)

    await births.reserve(resources, [birth], to_run=False)
    try:
        return await births.in_two_tries(resources, birth, restore_and_compare)
    except OSError as error:
        births.raise_in_words(error, origin.branch)
    finally:
        await births.undo(resources, birth.row)


def _check_outside(held: HeldCapture) -> None:
    """Raise CannotCapture if the restore would change files of the host, which the running session may use."""
    if paths := held.changed_outside():
        said = (
            "the restore would change files of the host that the session shares, so close these sockets, FIFOs, "
            f"removed files and files with a lease before the checkpoint: {', '.join(paths[:3])}"
        )
        raise CannotCapture("prove", held.capture.id[:12], said, code="changes-host")
