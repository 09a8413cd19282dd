"""Delays work that is not urgent while a session is frozen for a capture, or about to be frozen.

Python runs only one thread at a time. While another thread computes, each of the about forty steps of a capture waits
up to 0.5 ms (daemon/lifetime.py) for the interpreter, and a client that reads a long stream occupies a processor. So
the code that produces long lists and streams calls `wait` between two pieces.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

# The longest time for which a frozen session delays other work. Sessions with much memory are frozen for longer.
WAIT_S = 0.1


class _Pauses:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = 0
        self.latest = 0.0  # the time.monotonic at which the latest `announced` block began


_pauses = _Pauses()


@contextlib.contextmanager
def announced() -> Iterator[None]:
    """Announce that a session is frozen, or about to be frozen, inside the `with` block. Such blocks may overlap."""
    with _pauses.changed:
        _pauses.count += 1
        _pauses.latest = time.monotonic()
    try:
        yield
    finally:
        with _pauses.changed:
            _pauses.count -= 1
            _pauses.changed.notify_all()


def are_under_way() -> bool:
    """Return True while a session is inside an `announced` block."""
    return _pauses.count > 0


def wait() -> None:
    """Wait until no session is inside an `announced` block, or until the latest block has lasted WAIT_S. Blocks."""
    if _pauses.count:
        with _pauses.changed:
            left_s = _pauses.latest + WAIT_S - time.monotonic()
            if left_s > 0:
                _pauses.changed.wait_for(lambda: not _pauses.count, left_s)
