"""Running a function in the network namespace of another process (setns(2), network_namespaces(7))."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from waypoint.linux.tasks import namespaces, pidfd

Result = TypeVar("Result")


def work_in(pid: int, work: Callable[[], Result]) -> Result:
    """Call `work` in the network namespace of process `pid` and return its result.

    A socket that `work` opens belongs to that namespace for good, so the caller can use the socket afterwards.
    Raises ProcessLookupError if the process has ended, OSError of setns(2), and whatever `work` raises.
    """

    def enter_and_work() -> Result:
        process = pidfd.open(pid)
        try:
            namespaces.setns(process, namespaces.CLONE_NEWNET)
        finally:
            os.close(process)
        return work()

    # setns(2) changes the namespace of the calling thread only. A thread for this one call leaves the others alone.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(enter_and_work).result()
