"""The store's own process, `python -I -S worker_program.py`: reads orders from stdin, and writes answers to stdout
(orders.py). It ends at once when stdin is closed, also in the middle of an order: the daemon has ended.

A process of its own, because Python threads that hash and compress would delay the daemon's event loop by 20 ms.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from waypoint.model.packages import make_importable

if __name__ == "__main__":
    make_importable("blake3", "msgspec", "rfc8785", "zstandard")
    from waypoint.capture.storing.worker_loop import main

    main()
