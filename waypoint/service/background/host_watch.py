"""Updates the daemon's mounts when the machine's mounts change (launch/ground/host_mounts.py).

A session's start updates them too. In between, a device that is unmounted on the machine must not stay busy because the
daemon still has it mounted.
"""

import asyncio
import logging
import select
from collections.abc import Callable

from waypoint.launch.ground.host_mounts import HostMounts

# Seconds to wait for further changes after the first one: containers mount and unmount many file systems at once.
SWARM_S = 0.1

log = logging.getLogger(__name__)


class HostWatch:
    def __init__(self, host: HostMounts, on_change: Callable[[], object] = bool) -> None:
        """`on_change`: called in the event loop after the daemon's mounts were updated."""
        self._host = host
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        # The event loop can wait for POLLIN only, which mountinfo always reports. So the loop waits for an epoll, which
        # waits for mountinfo's POLLPRI.
        self._changes = select.epoll()
        self._changes.register(host.table, select.EPOLLPRI)
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._following = self._loop.create_task(self._follow())

    async def stop(self) -> None:
        self._loop.remove_reader(self._changes)
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        self._changes.close()

    async def _follow(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._host.follow)
                self._on_change()
            except OSError as error:  # the next change, or a session's start, tries it again
                log.warning("cannot follow the machine's mounts: %s", error)
            await self._wait_changed()
            await asyncio.sleep(SWARM_S)

    async def _wait_changed(self) -> None:
        changed = asyncio.Event()
        self._loop.add_reader(self._changes, changed.set)
        try:
            await changed.wait()
        finally:
            self._loop.remove_reader(self._changes)
        self._changes.poll(0)
