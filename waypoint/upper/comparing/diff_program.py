"""The files that differ, told by a program of its own: `python -I -S diff_program.py`, one order in JSON on stdin.

A walk over many files would hold up a daemon that made it in a thread (Python's global interpreter lock). The program
tells on stdout, as lines of JSON, what docs/protocol.md lists for `POST /v1/diffs`: the files and the end, or an error.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from waypoint.model.packages import begin

if __name__ == "__main__":
    begin()
    from waypoint.upper.comparing.diff_work import main

    sys.exit(main())
