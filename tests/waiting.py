"""Waiting for what no event tells of from outside. Where there is an event (a pidfd, a socket), wait for that."""

import time
from collections.abc import Callable

DEADLINE_S = 30.0
_FIRST_PAUSE_S = 0.005
_LAST_PAUSE_S = 0.1


def holds_within(deadline_s: float, holds: Callable[[], bool]) -> bool:
    """Ask until it holds, at least once; False if it did not within `deadline_s`."""
    end = time.monotonic() + deadline_s
    pause_s = _FIRST_PAUSE_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    return True


def wait_until(holds: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Raises AssertionError with `what` (a sentence that should become true) after `deadline_s`."""
    assert holds_within(deadline_s, holds), f"after {deadline_s:g} s still not: {what}"
