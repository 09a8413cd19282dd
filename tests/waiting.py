"""Waiting for what no event tells of from outside. Where there is an event (a pidfd, a socket), wait for that."""

import os
import re
import shlex
import time
from collections.abc import Callable

DEADLINE_S = 20.0
"""The default, for what happens at once on a quiet machine, in less than 2 s: the tests run beside each other, two on a
processor, and some build, dump or write gigabytes back to the disk. Where the time is what a test is about, it says its
own bound.
"""
PATIENCE_S = 40.0
"""For a command, or a person's program, to end: longer than a CRIU that hangs is waited for and tried again."""
_FIRST_PAUSE_S = 0.005
_LAST_PAUSE_S = 0.1


def holds_within(deadline_s: float, holds: Callable[[], bool], *, brief: bool = False) -> bool:
    """Ask until it holds, at least once; False if it did not within `deadline_s`.

    `brief`: it may hold for a moment only. Between two questions the processor is left to others, but nothing sleeps.
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
    """Raises AssertionError with `what` (a sentence that should become true) after `deadline_s`. `brief`: see above."""
    assert holds_within(deadline_s, holds, brief=brief), f"after {deadline_s:g} s still not: {what}"


def until_runs(*lines: str) -> str:
    """Shell text that ends when programs with these command lines run in the session. What a shell has begun with `&`
    is a shell at first, and what a shell writes before `exec` says nothing of the program.
    """
    return f"until {' && '.join(f'pgrep -fx {shlex.quote(re.escape(line))}' for line in lines)}; do :; done >/dev/null"
