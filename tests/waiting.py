"""Polling for conditions without an event. Where there is an event (a pidfd, a socket), wait for that."""

import os
import time
from collections.abc import Callable

DEADLINE_S = 60.0
"""Ends a test that hangs. It is not a limit on speed, because other programs may keep the machine busy."""
PATIENCE_S = DEADLINE_S
"""Deadline for the end of a command or program. Longer than Waypoint waits for two CRIUs that hang."""
_FIRST_PAUSE_S = 0.005
_LAST_PAUSE_S = 0.1


def holds_within(deadline_s: float, holds: Callable[[], bool], *, brief: bool = False) -> bool:
    """Poll until `holds()` is true; False after `deadline_s`. Polls at least once.

    `brief`: the condition may be true for a moment only, so yield between two polls instead of sleeping.
    """
    end = time.monotonic() + deadline_s
    pause_s = _FIRST_PAUSE_S
    while not holds():
        if time.monotonic() > end:
            return False
        if brief:
            os.sched_yield()
        else:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    return True


def wait_until(holds: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S, *, brief: bool = False) -> None:
    """Poll until `holds()` is true; fail the test after `deadline_s`. `what`: the awaited state, as a sentence.

    `brief`: see `holds_within`.
    """
    assert holds_within(deadline_s, holds, brief=brief), f"after {deadline_s:g} s still not: {what}"
