"""The daemon as a program, started by the supervisor. Short: a script is compiled at every start."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.daemon.packages import leave_out_ssl, make_importable


def main() -> int:
    make_importable()
    leave_out_ssl()
    from waypoint.daemon.home import Home
    from waypoint.daemon.lifetime import run

    return run(sys.argv[1:], dict(os.environ), Home.open)


if __name__ == "__main__":
    sys.exit(main())
