"""The supervisor as a program: `python -I -S supervisor.py HOME [--ready-fd N]`.

The file is short because Python compiles a script at every start.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.daemon.supervision import main

if __name__ == "__main__":
    main(sys.argv[1:], dict(os.environ))
