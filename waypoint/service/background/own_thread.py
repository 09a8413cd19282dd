"""Long waits in threads of their own: those of the event loop's pool are few, and all requests need them."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Waited = TypeVar("Waited")


def in_own_thread(act: Callable[[], Waited]) -> "asyncio.Future[Waited]":
    """Call `act`, which may last as long as somebody else likes, in a thread that is not one of the pool's. It begins
    at once, and goes on if the future is cancelled. Raises RuntimeError if the machine has no thread left.
    """
    pool = ThreadPoolExecutor(1)
    try:
        return asyncio.get_running_loop().run_in_executor(pool, contextvars.copy_context().run, act)
    finally:
        pool.shutdown(wait=False)  # the thread ends with `act`
