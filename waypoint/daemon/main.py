"""The daemon as a program, started by the supervisor. Short: a script is compiled at every start."""

import functools
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.daemon.packages import leave_out_ssl, make_importable


def main() -> int:
    make_importable()
    leave_out_ssl()
    from waypoint.capture import steps
    from waypoint.daemon.home import Home
    from waypoint.daemon.lifetime import run

    environ = dict(os.environ)
    steps.arm(environ.get("WAYPOINT_PAUSE_AT", ""))
    return run(sys.argv[1:], environ, functools.partial(Home.open, criu=environ.get("WAYPOINT_CRIU")))


if __name__ == "__main__":
    sys.exit(main())
