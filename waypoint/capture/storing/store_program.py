"""The work on the store as a program of its own: `python -I -S store_program.py NICE GATE STEPS`, orders in JSON on
stdin.

Hashing and cutting would hold up a daemon that did them in a thread (Python's global interpreter lock).
order_program.py says how it talks. It leaves nothing half done, whenever it ends.
"""

import gc
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from waypoint.model.packages import begin

if __name__ == "__main__":
    begin("msgspec", "blake3", "zstandard")
    from waypoint.capture.storing.store_work import main

    gc.enable()

    main()
