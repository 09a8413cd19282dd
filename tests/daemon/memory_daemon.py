"""A daemon as waypoint/daemon/main.py is one, but with the Service that lives in memory."""

import gc
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.model.packages import begin


def main() -> int:
    sys.modules |= {"ssl": None}  # type: ignore[dict-item]  # as in main.py: it is started by the dozen
    begin("h11", "msgspec")
    import asyncio

    from tests.daemon.memory_service import MEMORY_ROUTES, MemoryService
    from waypoint.daemon.lifetime import run
    from waypoint.daemon.siblings import QUICK_DEATH_S
    from waypoint.model.errors import HostLacks

    gc.enable()

    async def open_service(home: str, _host_mounts: int) -> MemoryService:
        # A home can ask for trouble by having a file of its name.
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
