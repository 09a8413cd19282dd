"""Moving attached layers, as a program of its own: `python -I -S attach_program.py FD STEPS`; behind the
descriptor FD is the order, in JSON.

A folder may have any number of files: a thread of the daemon that wrote them would hold up all others. The program
tells on stdout `{"result": ...}` or `{"error": {...}}` with the four parts of a message.
"""

import gc
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from waypoint.model.packages import begin

if __name__ == "__main__":
    begin("msgspec")
    from waypoint.capture.attaching.attach_work import main

    gc.enable()
    sys.exit(main(int(sys.argv[1]), "".join(sys.argv[2:])))
