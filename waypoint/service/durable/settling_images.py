"""Images that were born in memory come to the disk by themselves, some time after their session has gone on, and when
the daemon stops: the machine may be switched off then.
"""

import asyncio
import errno
import logging
import os
import time

from waypoint.model.errors import UnknownName, WaypointError
from waypoint.model.facts import Capability
from waypoint.service.home import Home
from waypoint.upper.contract import mib

LOST, IN_MEMORY = "captures lost with the machine's memory", "images in memory"
_AGAIN = 3
"""So often within the time for which images are in memory alone they are looked at; what somebody held is tried again,
and a disk that was full.
"""
STOP_S, FIRST_STOP_S = 8.0, 2.0
"""So long a daemon that stops goes on with it at most, and so much of that before its sessions are closed, which may
take 8 s: it has 12 s for all that it ends (daemon/lifetime.py).
"""

log = logging.getLogger(__name__)


class SettlingImages:
    """The work of one daemon. To be used in its event loop."""

    def __init__(self, home: Home) -> None:
        """To be made before anything is captured."""
        self._home = home
        self._after_s = home.config.settle_after_s
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._until = self._stop_by = float("inf")
        self._told: set[str] = set()
        settling = home.captures.settling
        settling.finish(home.names.captures_of(settling.memory.list(), may_lack=True))

    def later(self) -> None:
        """Images may be in memory: see to them after a while."""
        self._in(self._after_s)

    def _in(self, seconds: float) -> None:
        if self._timer is None and self._home.captures.settling.memory.list():
            self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._work(time.clock_gettime(time.CLOCK_BOOTTIME) - self._after_s)
            )

    async def _work(self, taken_before: float) -> None:
        try:
            await asyncio.to_thread(self._settle, taken_before)
        except (WaypointError, OSError) as error:
            log.warning("images stay in memory: %s", error)
        self._in(self._after_s / _AGAIN)

    def stop(self) -> None:
        """From now on no images are born in memory."""
        self._home.captures.settling.memory.why_not = "the daemon stops"

    async def close(self) -> None:
        """Bring all to the disk that nobody holds, for FIRST_STOP_S at most, also where the disk runs short; called
        again, what is left and held no more, until STOP_S after the first call. What stays comes there with the next
        daemon, and is lost if the machine goes down before.
        """
        now, is_last = time.monotonic(), self._stop_by != float("inf")
        self._stop_by = min(self._stop_by, now + STOP_S)
        self._until = self._stop_by if is_last else now + FIRST_STOP_S
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._home.captures.settling.memory.list():
            await self._work(float("inf"))
        if self._timer is not None:
            self._timer.cancel()
        if is_last and (left := self._home.captures.settling.memory.list()):
            log.warning("%d captures have images in memory alone until the next daemon", len(left))

    def _settle(self, taken_before: float) -> None:
        """Bring the images to the disk of captures that were taken before `taken_before`, by CLOCK_BOOTTIME (memory
        outlives no boot), the oldest first. What fails is logged, and stays in memory. Blocks. Raises StoreDamaged.
        """
        captures, names = self._home.captures, self._home.names
        found = names.captures_of(captures.settling.memory.list(), may_lack=True).values()
        for capture in sorted((one for one in found if one.clock <= taken_before), key=lambda one: one.clock):
            try:
                self._between()
                floor = captures.attached.floor_bytes if self._until == float("inf") else 0
                if not captures.settling.has_room(capture.id, floor):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                captures.settle(capture, self._between)
            except UnknownName:  # it was removed
                continue
            except OSError as error:
                if capture.id not in self._told:
                    log.warning("the images of capture %s stay in memory: %s", capture.id[:12], error)
                self._told.add(capture.id)

    def _between(self) -> None:
        """Raises TimeoutError if the daemon stops and has no time left."""
        if time.monotonic() > self._until:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        self._home.between()


def lost(home: Home) -> dict[str, list[str]]:
    """The captures whose processes were in memory alone when the machine went down, with the names that stand for
    them; what no name stands for is left out. Blocks.
    """
    named = list({ref.capture for ref in home.names.refs().values() if ref.capture})
    standings = home.names.standings(named)
    ids = [one for one in named if not standings[one].durable and not standings[one].removed]
    found = home.names.captures_of(ids, may_lack=True).values()
    gone = [one.id for one in found if one.tier == "live" and home.captures.settling.is_lost(one.id)]
    return home.names.names_of_all(gone)


def of_memory(home: Home) -> list[Capability]:
    """The rows of `doctor`: what is in memory, and what was lost there. Blocks."""
    memory, gone = home.captures.settling.memory, lost(home)
    why = f"{mib(memory.used_bytes())} of at most {mib(memory.most_bytes)}"
    wanted = bool(home.config.hot_memory_bytes)
    rows = [
        Capability(
            name=IN_MEMORY,
            state="degraded" if wanted and memory.why_not else "ok",
            why=f"none: {memory.why_not}" if memory.why_not else why,
            remedy="",
            required_for="optional",
        )
    ]
    if gone:
        remedy = "start again what ran, on their files: waypoint restore NAME --tier respawn; or waypoint rm NAME"
        said = "; ".join(", ".join([*names, ident[:12]]) for ident, names in gone.items())
        rows.append(Capability(name=LOST, state="degraded", why=said, remedy=remedy, required_for="optional"))
    return rows
