"""The daemon as a program, started by the supervisor. The file is short because Python compiles a script at every
start.
"""

import functools
import gc
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.model.packages import begin


def main() -> int:
    # What is None here cannot be imported: asyncio does without OpenSSL (8 ms, 5 MB), shutil without the others (3 ms).
    sys.modules |= {"ssl": None, "bz2": None, "lzma": None}  # type: ignore[dict-item]
    begin("h11", "msgspec")
    from waypoint.daemon import late
    from waypoint.daemon.http.routes import ROUTES
    from waypoint.daemon.lifetime import run
    from waypoint.service import housekeeping
    from waypoint.service.home import Home

    gc.freeze()
    gc.enable()
    environ = dict(os.environ)
    criu, pause_at = environ.get("WAYPOINT_CRIU"), environ.get("WAYPOINT_PAUSE_AT", "")
    open_home = functools.partial(
        Home.open,
        criu=criu,
        pause_at=pause_at,
        serve_inside=late.calling("service.inside.serving:serve"),
        upkeep=housekeeping.UPKEEP,
    )
    return run(sys.argv[1:], environ, open_home, ROUTES)


if __name__ == "__main__":
    sys.exit(main())
