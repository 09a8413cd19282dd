"""Standbys: keeps frozen copies of checkpoints ready, so that a fork or restore takes some milliseconds.

The home's setting `standbys` is how many there may be; 0: none. Each stands for one of the checkpoints that were made
or restored last. Without the setting there are AUTOMATIC, only of checkpoints that were forked or restored already, and
only if no program can notice that its clock goes on. A standby is made when no operation has come for QUIET_S. It ends
when its checkpoint is removed, when newer ones need its place, when the machine runs short of memory or its mounts
change, when no session runs any more, and with the daemon.
"""

import asyncio
import contextlib
import logging

from waypoint.linux.calls import machine
from waypoint.model.errors import WaypointError
from waypoint.model.records import Capture, Operation
from waypoint.session.birth import standby as standing
from waypoint.session.live.standbys import Standby
from waypoint.session.registry import Registry

QUIET_S = 0.2
AUTOMATIC = 2
_LOOK_S = 5.0  # how often the machine's memory and mounts are looked at
_SPARE = 8  # the share of the machine's memory that must stay available, as a divisor
_MOST_SHARE = 16  # the share that all standbys may take, as a divisor
_MOST_KNOWN = 64  # checkpoints whose last use is known

log = logging.getLogger(__name__)


class StandingBy:
    """Makes and ends the standbys of a home. Call the methods in the event loop, except `later`."""

    def __init__(self, sessions: Registry, most: int | None) -> None:
        """`most`: the home's setting; None: it has none."""
        self._sessions = sessions
        self._resources = sessions.resources
        self._standbys = sessions.resources.standbys
        self._is_asked = most is not None
        self._most = AUTOMATIC if most is None else most
        self._used: dict[str, None] = {}  # the captures that were made or restored; the last one is the last
        self._refused: set[str] = set()  # captures that cannot have a standby
        self._loop = asyncio.get_running_loop()
        self._due, self._turn = asyncio.Event(), asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None  # until the daemon is quiet
        self._work: asyncio.Task[None] | None = None
        if self._most:
            self._standbys.on_use = lambda capture: self._note([capture.id])
            self._work = asyncio.ensure_future(self._run())

    def note_operation(self, entry: Operation) -> None:
        """An operation was recorded. Thread-safe."""
        refs = [move.after for move in entry.moves.values() if entry.verb == "checkpoint" and move.after is not None]
        made = [ref.capture for ref in refs if ref.kind == "checkpoint" and ref.capture]
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._note, made if self._is_asked else [])

    def later(self) -> None:
        """End the standbys that are not wanted any more, and make those that are, once the daemon is quiet.
        Thread-safe.
        """
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note, [])

    async def end_all(self) -> None:
        """End all standbys. Others are made for the checkpoints that are made or restored from now on."""
        self._used.clear()
        async with self._turn:
            await self._end(self._standbys.all)

    async def close(self) -> None:
        """End all standbys for good."""
        if self._work is not None:
            self._most = 0
            await self.end_all()
            if self._timer is not None:
                self._timer.cancel()
            self._work.cancel()
            await asyncio.wait([self._work])

    def _note(self, captures: list[str]) -> None:
        if self._work is None:
            return
        for capture_id in captures:
            self._used.pop(capture_id, None)
            self._used[capture_id] = None
        for capture_id in list(self._used)[:-_MOST_KNOWN]:
            del self._used[capture_id]
        self._refused &= self._used.keys()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(QUIET_S, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._due.set()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), _LOOK_S if self._standbys.all else None)
            self._due.clear()
            try:
                async with self._turn:
                    await self._keep_up()
            except (WaypointError, OSError) as error:
                log.warning("standbys are not kept up: %s", error)
            except Exception:  # a bug, after which standbys must still end when the memory is short
                log.exception("standbys are not kept up")

    async def _keep_up(self) -> None:
        mounts = await asyncio.to_thread(self._resources.places.follow_host)
        wanted = await asyncio.to_thread(self._wanted, list(reversed(self._used)))
        ids = {capture.id for capture in wanted}
        await self._end([one for one in self._standbys.all if one.origin.id not in ids or one.mounts != mounts])
        for capture in wanted:
            if self._timer is not None or not self._most:
                return  # after other operations, others may be wanted
            if all(one.origin.id != capture.id for one in self._standbys.all):
                await self._make(capture)

    def _wanted(self, ids: list[str]) -> list[Capture]:
        """The captures, of these, that should have a standby. Blocks."""
        total, names = machine.total_memory_bytes(), self._resources.names
        if not self._sessions.running or machine.available_memory_bytes() < total // _SPARE:
            return []
        found, named = names.captures_of(ids, may_lack=True), names.names_of_all(ids)
        wanted: list[Capture] = []
        for capture in (found[one] for one in ids if one in found and one not in self._refused):
            refs = filter(None, map(names.ref, named[capture.id]))
            if any(ref.kind == "checkpoint" for ref in refs) and standing.can_stand(capture):
                wanted.append(capture)
        bound, kept = total // _MOST_SHARE, list[Capture]()
        for capture in wanted[: self._most]:
            bound -= standing.size_of(capture)
            if bound < 0:
                break
            kept.append(capture)
        return kept

    async def _make(self, capture: Capture) -> None:
        standby = None
        try:
            standby = await standing.make(self._resources, capture, timeless_only=not self._is_asked)
        except (WaypointError, OSError) as error:
            log.warning("there is no standby of capture %s: %s", capture.id[:12], error)
        if standby is None:
            self._refused.add(capture.id)
        else:
            self._standbys.add(standby)

    async def _end(self, standbys: list[Standby]) -> None:
        for standby in standbys:
            if self._standbys.remove(standby) is not None:
                await standing.end(self._resources, standby)
