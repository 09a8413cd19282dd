"""The steps of changing the machine's files, by name: places where a test lets the program die, or the disk be full.

Up to EXCHANGED whoever comes next takes all back. Between EXCHANGED and FINISHED the operation log says which it is.
After that all stays.
"""

from collections.abc import Callable
from enum import StrEnum


class ApplyStep(StrEnum):
    """What has just been done."""

    JOURNALLED = "apply-journalled"  # the plan is on disk
    STAGED_ONE = "apply-staged-one"
    STAGED = "apply-staged"  # all that is to be put waits beside its place, durably
    EXCHANGED_ONE = "apply-exchanged-one"
    EXCHANGED = "apply-exchanged"  # the machine has all of it, durably
    FINISHED = "apply-finished"  # it is in the operation log
    SETTLED_ONE = "apply-settled-one"
    SETTLED = "apply-settled"  # what was there before is in the journal's folder


listener: Callable[[ApplyStep], None] | None = None
"""Set by the program where it was started by a test, and by tests."""


def reached(step: ApplyStep) -> None:
    """Tell the listener, if there is one."""
    if listener is not None:
        listener(step)
