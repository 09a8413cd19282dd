"""The daemon as a program, started by the supervisor. The file is short because Python compiles a script at every
start.
"""

import functools
import gc
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.model.packages import make_importable


def main() -> int:
    # A module that is None in sys.modules cannot be imported. So asyncio does not load OpenSSL (saves 8 ms and 5 MB),
    # and msgspec uses `typing` instead of typing_extensions (2 ms).
    gc.disable()  # garbage collection during the imports would take 6 ms and find nothing
    sys.modules |= {"ssl": None, "typing_extensions": None}  # type: ignore[dict-item]
    make_importable("h11", "msgspec")
    from waypoint.daemon.http.routes import ROUTES
    from waypoint.daemon.lifetime import run
    from waypoint.service import housekeeping
    from waypoint.service.auto_points import AutoPoints
    from waypoint.service.deadlines import Deadlines
    from waypoint.service.home import Home
    from waypoint.service.inside import serving

    gc.freeze()
    gc.enable()
    environ = dict(os.environ)
    criu, pause_at = environ.get("WAYPOINT_CRIU"), environ.get("WAYPOINT_PAUSE_AT", "")
    open_home = functools.partial(
        Home.open,
        criu=criu,
        pause_at=pause_at,
        serve_inside=serving.serve,
        relief=housekeeping.RELIEF,
        auto=AutoPoints,
        deadlines=Deadlines,
    )
    return run(sys.argv[1:], environ, open_home, ROUTES)


if __name__ == "__main__":
    sys.exit(main())
