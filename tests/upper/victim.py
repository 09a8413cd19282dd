"""A process that works on a pool until it is killed: `python -m tests.upper.victim TASK HOME DRIVER`.

It prints `ready` before the work during which the test kills it. It has its own mount namespace, like the daemon.
"""

import dataclasses
import itertools
import os
import signal
import sys
from collections.abc import Callable

from tests.upper.pool_homes import MIB, SIZES
from waypoint.linux.storage import filesystem, mounts
from waypoint.linux.tasks import namespaces
from waypoint.upper.contract import Pool
from waypoint.upper.open_pool import Driver, open_pool

STEP_BYTES = 8 * MIB


def _ready() -> None:
    os.write(1, b"ready\n")


def make(home: str, driver: Driver) -> None:
    """Make the pool."""
    _ready()
    open_pool(home, driver, SIZES)


def grow(home: str, driver: Driver) -> None:
    """Let the pool's file grow step by step, as far as the disk allows."""
    pool = open_pool(home, driver, SIZES)
    _ready()
    while True:
        wanted = dataclasses.replace(SIZES, step_bytes=STEP_BYTES, headroom_bytes=pool.free_bytes() + 1)
        open_pool(home, driver, wanted).grow_if_needed()


def turn_over(home: str, driver: Driver) -> None:
    """Snapshot the tree `source` again and again, and remove every other snapshot."""
    pool = open_pool(home, driver, SIZES)
    _ready()
    for number in itertools.count():
        pool.snapshot("source", f"copy {number}", sealed=number % 2 == 1)
        if number % 2:
            pool.remove(f"copy {number - 1}")
        pool.sync("source")


def hold(home: str, driver: Driver) -> None:
    """Keep a file of the tree `one` open, like a session that outlives its daemon."""
    pool: Pool = open_pool(home, driver, SIZES)
    with open(f"{pool.path('one')}/held", "w") as file:
        _ready()
        file.write(sys.stdin.readline())


TASKS: dict[str, Callable[[str, Driver], None]] = {"make": make, "grow": grow, "turn_over": turn_over, "hold": hold}


def main(task: str, home: str, driver: Driver) -> None:
    signal.alarm(60)  # ends this process if the test was killed
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.make_private("/")
    assert filesystem.free_bytes(home) > 0
    TASKS[task](home, driver)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
