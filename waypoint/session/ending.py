"""The end of a session: what it leaves is sealed, those who wait are told, nothing of it is left over."""

import asyncio
import logging
import os
from collections.abc import Callable

from waypoint.capture import sealing
from waypoint.capture.sealing import Conclusion
from waypoint.capture.steps import Step, reach
from waypoint.linux import cgroups, procfs
from waypoint.model.errors import WaypointError
from waypoint.model.ids import is_id
from waypoint.model.records import Capture, LiveRow
from waypoint.session import record
from waypoint.session.home_ground import HomeGround
from waypoint.session.live import LiveSession
from waypoint.session.record import RuntimeRecord

SETTLE_S = 15.0

log = logging.getLogger(__name__)


class Endings:
    """Ends live sessions, each in a task of its own and once: a client that goes away does not stop it half-way."""

    def __init__(self, ground: HomeGround, forget: Callable[[LiveSession], None]) -> None:
        """`forget` is called when the branch can be started again."""
        self._ground = ground
        self._forget = forget
        self._tasks: set[asyncio.Task[Capture | None] | asyncio.Task[None]] = set()

    def begin(self, live: LiveSession, conclusion: Conclusion) -> asyncio.Task[Capture | None]:
        """The task that ends `live`; its result is what was kept of it."""
        if live.ending is None:
            live.ending = self._keep(asyncio.ensure_future(self._end(live, conclusion)))
        return live.ending

    async def settle(self) -> None:
        """Wait for the endings under way, at most SETTLE_S."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SETTLE_S)

    async def _end(self, live: LiveSession, conclusion: Conclusion) -> Capture | None:
        row, pool, names = live.record.row, self._ground.pool, self._ground.names
        status = capture = None
        try:
            await asyncio.to_thread(end_processes, live.record.cgroup)
            await asyncio.to_thread(reach, Step.ENDED)
            live.terminal.go_on()  # it may have been captured, and held since
            await live.wait_drained()
            status = sealing.read_exit_status(pool.path(row.tree))
            capture = await asyncio.to_thread(conclusion.conclude, pool, names, row)
            await asyncio.to_thread(reach, Step.CONCLUDED)
        finally:
            self._forget(live)
        closing = asyncio.ensure_future(self._close(live, status))
        self._tasks.add(closing)
        closing.add_done_callback(self._tasks.discard)
        return capture

    async def _close(self, live: LiveSession, status: int | None) -> None:
        await live.close(status)
        record.remove_folder(self._ground.places.sessions, live.record.row.session)

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


def end_dead(ground: HomeGround, row: LiveRow, entry: RuntimeRecord | None) -> None:
    """End a session that no longer lives, whose daemon is gone as well. `entry`: its runtime record, if one is left.

    A failure is logged and leaves the row for the next daemon to try: one damaged branch must not keep the home shut.
    """
    try:
        end_processes(ground.places.cgroup_of(row.session))
        same_boot = entry is not None and entry.boot_id == procfs.boot_id()
        sealing.seal(ground.pool, ground.names, row, "crashed" if same_boot else "lost")
        record.remove_folder(ground.places.sessions, row.session)
    except (WaypointError, OSError) as error:
        log.error("cannot end the dead session on %s: %s", row.branch, error)


def end_unborn(ground: HomeGround, row: LiveRow) -> None:
    """Take back a start that the last daemon did not come to the end of. A failure is logged, and left as above."""
    try:
        end_processes(ground.places.cgroup_of(row.session))
        with ground.names.change("undo-start") as change:
            change.forget(row)
    except (WaypointError, OSError) as error:
        log.error("cannot take back the start of a session on %s: %s", row.branch, error)


def end_dumps(ground: HomeGround) -> None:
    """See the captures of the last daemon through to their end, before anything is made of their sessions.

    A CRIU that nobody listens to any more notices that at its next step, gives up, and leaves the session as it has
    found it: frozen. One that does not get there in time is ended; what it has put into the session's tasks takes
    itself out then.
    """
    try:
        cgroups.wait_empty(ground.places.dumps)
    except TimeoutError:
        log.warning("a CRIU did not end with the daemon that had started it")
        cgroups.kill(ground.places.dumps)
        cgroups.wait_empty(ground.places.dumps)


def sweep(ground: HomeGround) -> None:
    """Remove what a crash in a start, a capture or an ending has left: whatever no record names."""
    rows = [*ground.names.live(), *ground.names.live(ready=False)]
    sessions = {row.session for row in rows}
    for group in cgroups.children(ground.places.cgroup):
        if is_id(group) and group not in sessions:
            end_processes(ground.places.cgroup_of(group))
    captures = ground.names.captures()
    trees = {row.tree for row in rows} | {capture.layers.files.tree for capture in captures}
    for tree in ground.pool.list():
        if tree not in trees:
            ground.pool.remove(tree)
    ground.hot.sweep({capture.id for capture in captures})
    for name in os.listdir(ground.places.sessions):
        if name not in sessions:
            record.remove_folder(ground.places.sessions, name)
