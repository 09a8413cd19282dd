"""The file that the `waypoint` script runs, as `python -I -S main.py ARGS`. Python compiles it at every start, so it is
short.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.cli.entry import main

if __name__ == "__main__":
    main(sys.argv[1:])
