"""A daemon as waypoint/daemon/main.py is one, but with the Service that lives in memory."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.daemon.packages import leave_out_ssl, make_importable


def main() -> int:
    make_importable()
    leave_out_ssl()
    from tests.daemon.memory_service import MemoryService
    from waypoint.daemon.lifetime import run
    from waypoint.model.errors import HostLacks

    async def open_service(home: str) -> MemoryService:
        # A home can ask for trouble by having a file of its name.
        if os.path.exists(f"{home}/refuses"):
            raise HostLacks("open the pool of", home, "as asked", "remove the file")
        if os.path.exists(f"{home}/dies"):
            os._exit(1)
        return MemoryService()

    return run(sys.argv[1:], dict(os.environ), open_service)


if __name__ == "__main__":
    sys.exit(main())
