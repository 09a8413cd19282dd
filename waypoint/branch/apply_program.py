"""Changing the machine's files as a program of its own: `python -I -S apply_program.py`, one order in JSON on stdin.

capture/storing/order_program.py says how it talks. It asks once, when the machine has all of the change: whoever has
started it then writes the operation log. If it is killed before that, another one takes the change back.
"""

import gc
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.model.packages import begin

if __name__ == "__main__":
    begin("msgspec", "blake3")
    from waypoint.branch.applying.apply_work import main

    gc.enable()

    main()
