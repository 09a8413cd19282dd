"""Work in the network namespace of another process (setns(2), network_namespaces(7))."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from waypoint.linux import namespaces, pidfd

Made = TypeVar("Made")


def work_in(pid: int, work: Callable[[], Made]) -> Made:
    """Do `work` in the network namespace of `pid` and return what it made: a socket stays in its namespace."""

    def enter_and_work() -> Made:
        process = pidfd.open(pid)
        try:
            namespaces.setns(process, namespaces.CLONE_NEWNET)
        finally:
            os.close(process)
        return work()

    # A thread: it alone changes its namespace, and it is gone afterwards.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(enter_and_work).result()
