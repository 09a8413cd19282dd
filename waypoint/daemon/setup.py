"""The local work of `waypoint setup`, as a program: `python -I -S setup.py VERB HOME [--user U] [--group G]`.

VERB is `install`, `check` or `remove`. It says what it does on stdout, one JSON object a line: `{"say": text}`;
`{"error": {...}}`, the four parts of a message, as the last one if it failed. Exit 0, or the error's exit code.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.daemon import packages

if __name__ == "__main__":
    packages.make_importable()
    from waypoint.daemon.setup_work import main

    sys.exit(main(sys.argv[1:]))
