"""Postpones deferrable work while a session is frozen or about to be.

Python runs one thread at a time. While another thread computes, each of some forty steps of a capture waits up to
0.5 ms (daemon/lifetime.py) for the interpreter, and a client that reads a long stream occupies a processor. So long
lists and streams call `wait` between two pieces.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

# The longest time for which a pause delays others. Sessions with much memory pause longer.
WAIT_S = 0.1


class _Pauses:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = 0
        self.latest = 0.0  # when the latest one began, by time.monotonic


_pauses = _Pauses()


@contextlib.contextmanager
def announced() -> Iterator[None]:
    """Announce that a session is frozen or about to be during the `with` block. Such blocks may overlap."""
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
    """True if a session is frozen or about to be."""
    return _pauses.count > 0


def wait() -> None:
    """Wait until no session is frozen or about to be, or until the latest pause has lasted WAIT_S. Blocks."""
    if _pauses.count:
        with _pauses.changed:
            left_s = _pauses.latest + WAIT_S - time.monotonic()
            if left_s > 0:
                _pauses.changed.wait_for(lambda: not _pauses.count, left_s)
