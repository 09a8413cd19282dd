"""The same program as waypoint/daemon/main.py, but with the fake service of memory_service.py."""

import asyncio
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.model.packages import make_importable


def main() -> int:
    make_importable("h11", "msgspec")
    from tests.daemon.memory_service import MEMORY_ROUTES, MemoryService
    from waypoint.daemon.lifetime import run
    from waypoint.daemon.siblings import QUICK_DEATH_S
    from waypoint.model.errors import HostLacks

    async def open_service(home: str, _host_mounts: int) -> MemoryService:
        # A file of one of these names in the home makes the daemon fail in that way.
        if os.path.exists(f"{home}/refuses"):
            raise HostLacks("open the pool of", home, "as asked", "remove the file")
        if os.path.exists(f"{home}/dies"):
            os._exit(1)
        if os.path.exists(f"{home}/dies-late"):
            signal.setitimer(signal.ITIMER_REAL, QUICK_DEATH_S)
            await asyncio.Event().wait()
        return MemoryService()

    return run(sys.argv[1:], dict(os.environ), open_service, MEMORY_ROUTES)


if __name__ == "__main__":
    sys.exit(main())
