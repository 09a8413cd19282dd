"""The end of a session: what it leaves is sealed, those who wait are told, nothing of it is left over."""

import asyncio
import logging
import os
from collections.abc import Callable

from waypoint.capture import sealing
from waypoint.linux import cgroups, procfs
from waypoint.model.errors import WaypointError
from waypoint.model.records import Capture, EndReason, LiveRow
from waypoint.session import record
from waypoint.session.ground.places import Places
from waypoint.session.live import LiveSession
from waypoint.session.record import RuntimeRecord
from waypoint.store.names import Names
from waypoint.upper.contract import Pool

SETTLE_S = 15.0

log = logging.getLogger(__name__)


class Endings:
    """Ends live sessions, each in a task of its own and once: a client that goes away does not stop it half-way."""

    def __init__(self, places: Places, names: Names, pool: Pool, forget: Callable[[LiveSession], None]) -> None:
        """`forget` is called when the branch can be started again."""
        self._places = places
        self._names = names
        self._pool = pool
        self._forget = forget
        self._tasks: set[asyncio.Task[Capture | None] | asyncio.Task[None]] = set()

    def begin(self, live: LiveSession, reason: EndReason, *, discard: bool = False) -> asyncio.Task[Capture | None]:
        """The task that ends `live`; its result is the new tip, None with `discard`."""
        if live.ending is None:
            live.ending = self._keep(asyncio.ensure_future(self._end(live, reason, discard=discard)))
        return live.ending

    async def settle(self) -> None:
        """Wait for the endings under way, at most SETTLE_S."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SETTLE_S)

    async def _end(self, live: LiveSession, reason: EndReason, *, discard: bool) -> Capture | None:
        row = live.record.row
        capture = None
        try:
            await asyncio.to_thread(end_processes, live.record.cgroup)
            await live.wait_drained()
            status = sealing.read_exit_status(self._pool.path(row.tree))
            if discard:
                await asyncio.to_thread(sealing.discard, self._pool, self._names, row)
            else:
                capture = await asyncio.to_thread(sealing.seal, self._pool, self._names, row, reason)
        finally:
            self._forget(live)
        closing = asyncio.ensure_future(self._close(live, status))
        self._tasks.add(closing)
        closing.add_done_callback(self._tasks.discard)
        return capture

    async def _close(self, live: LiveSession, status: int | None) -> None:
        await live.close(status)
        record.remove_folder(self._places.sessions, live.record.row.session)

    def _keep(self, task: asyncio.Task[Capture | None]) -> asyncio.Task[Capture | None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def end_processes(group: str) -> None:
    """SIGKILL everything in the session's cgroup and wait until it is gone; then remove the group."""
    if os.path.isdir(group):
        cgroups.kill(group)
        cgroups.wait_empty(group)
        cgroups.remove(group)


def end_dead(places: Places, names: Names, pool: Pool, row: LiveRow, entry: RuntimeRecord | None) -> None:
    """End a session that no longer lives, whose daemon is gone as well. `entry`: its runtime record, if one is left.

    A failure is logged and leaves the row for the next daemon to try: one damaged branch must not keep the home shut.
    """
    try:
        end_processes(places.cgroup_of(row.session))
        if row.tree in pool.list():
            same_boot = entry is not None and entry.boot_id == procfs.boot_id()
            sealing.seal(pool, names, row, "crashed" if same_boot else "lost")
        else:  # the last daemon died before it had made anything
            names.abandon(row)
        record.remove_folder(places.sessions, row.session)
    except (WaypointError, OSError) as error:
        log.error("cannot end the dead session on %s: %s", row.branch, error)


def sweep(places: Places, names: Names, pool: Pool) -> None:
    """Remove what a crash in a start or a discard has left: trees and folders that no record names."""
    sessions = {row.session for row in names.live()}
    trees = {row.tree for row in names.live()} | {capture.tree for capture in names.captures()}
    for tree in pool.list():
        if tree not in trees:
            pool.remove(tree)
    for name in os.listdir(places.sessions):
        if name not in sessions:
            record.remove_folder(places.sessions, name)
