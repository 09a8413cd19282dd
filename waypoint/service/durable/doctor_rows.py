"""The rows of `doctor` about what a home keeps: how its store is, and which captures are mounted."""

import asyncio
import os
from typing import Literal

from waypoint.capture.storing.orders import LookedOver, LookOver
from waypoint.launch.ground.shown_mounts import ShownCapture
from waypoint.model.errors import WaypointError
from waypoint.model.facts import Capability
from waypoint.model.paths import RUNTIME, spelled
from waypoint.service.durable.keeping import store_of
from waypoint.service.durable.store_process import carry_out, is_missing
from waypoint.service.home import Home
from waypoint.store.content.home_key import key_of, left_in, read_secret

STORE, MOUNTED = "the store of this home", "mounted captures"
_MOST = 3
"""Of what is wrong with the store: so much is told."""


async def of_store(home: Home) -> Capability:
    """Whether the store is encrypted, its key fits, and all of it seems to be there. Nothing of it is read."""
    state: Literal["ok", "missing", "degraded"] = "ok"
    why, problems, remedy = "not encrypted", list[str](), ""
    try:
        key = await asyncio.to_thread(key_of, str(home.path))
        if key is not None:
            why = f"encrypted, with the {'passphrase' if key.passphrase else 'key'} in {key.file}"
            await asyncio.to_thread(read_secret, key)
        if left := left_in(str(home.path)):
            state, remedy = "degraded", spelled(str(home.path), "setup")
            problems.append(f"{left} is what is left of one that was not")
        if damage := await _damage(home):
            problems += [*damage[:_MOST], *([f"{len(damage) - _MOST} more"] if damage[_MOST:] else [])]
            look = spelled(str(home.path), "verify")
            state, remedy = "degraded", f"put its files back from a backup; {look} tells what needs them"
    except WaypointError as error:
        state, problems, remedy = "missing", [error.said], error.next_step
    said = f"{why}: {'; '.join(problems)}" if problems else why
    return Capability(name=STORE, state=state, why=said, remedy=remedy, required_for="optional")


async def _damage(home: Home) -> list[str]:
    """What a quick look at the store finds, in words. Raises WaypointError: it cannot be opened."""
    if is_missing(home, store_of(home)):
        return []
    order = LookOver(store=store_of(home), images=home.names.images())
    return (await carry_out(home, order, LookedOver)).problems


def of_mounts(home: Home) -> Capability:
    """Which captures are mounted on the machine ('waypoint mount'), and which of these mounts are left of what is gone:
    a capture that this home does not know, or another home. Blocks. Raises OSError.
    """
    host = home.sessions.resources.places.host
    found = host.all_shown() if host is not None else []
    left = [one for one in found if _is_left(home, one)]
    said = [f"{one.capture[:12]} at {one.point}{' (gone)' if one in left else ''}" for one in found]
    return Capability(
        name=MOUNTED,
        state="degraded" if left else "ok",
        why=", ".join(said) or "none",
        remedy="; ".join(f"umount {one.point}" for one in left),
        required_for="optional",
    )


def _is_left(home: Home, one: ShownCapture) -> bool:
    """Whether what is mounted is gone. A home's folder in RUNTIME goes with the home, and with a reboot, as mounts."""
    if one.home != home.sessions.resources.places.runtime.name:
        return not os.path.isdir(f"{RUNTIME}/{one.home}")
    return not home.names.captures_of([one.capture], may_lack=True)
