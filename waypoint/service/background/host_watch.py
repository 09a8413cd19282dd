"""The watch over the machine's mounts: when they change, the daemon's follow them (launch/ground/host_mounts.py).

Whoever looks at the machine's mounts for a session lets them follow first. This watch is for the time in which nobody
looks: a device that is unmounted on the machine must not stay busy for the daemon's sake.
"""

import asyncio
import logging
import select

from waypoint.launch.ground.host_mounts import HostMounts

# How long a change waits for further ones: mounts come and go in swarms, such as those of containers.
SWARM_S = 0.1

log = logging.getLogger(__name__)


class HostWatch:
    def __init__(self, host: HostMounts) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        # The loop itself waits for POLLIN, which mountinfo always has. So it waits for an epoll that waits for changes.
        self._changes = select.epoll()
        self._changes.register(host.table, select.EPOLLPRI)
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow, now and after each change."""
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
            except OSError as error:  # tried again after the next change, and by whoever starts a session
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
