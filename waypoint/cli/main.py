"""The file that the `waypoint` script runs, as `python -I -S main.py ARGS`. The file is short because Python compiles a
script anew at every start.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.cli.entry import main

if __name__ == "__main__":
    main(sys.argv[1:])
