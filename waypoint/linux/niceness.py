"""How much of the processors and the disk a process leaves to all others (sched(7))."""

import contextlib
import os
import select

_PATIENCE_MS = 50


def give_way(nice: int) -> None:
    """Let the calling process be nicer by `nice`, and if it leads a session of its own (setsid(2)) its session, too:
    where the kernel groups processes by session (sched(7), "The autogroup feature"), the niceness of a process counts
    against others of its session only. Cannot be taken back without the machine's root.
    """
    os.nice(nice)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:  # not there: it does not group
        file.write(str(nice))


class Gate:
    """Lets programs be told when to rest: an eventfd(2), which they inherit, can be read while it is open."""

    def __init__(self) -> None:
        self.fd = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def shut(self) -> None:
        """Have `pass_gate` wait. No error if it is shut."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def open(self) -> None:
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """The last call."""
        os.close(self.fd)


def pass_gate(fd: int) -> None:
    """Wait until the gate with this descriptor is open, but not longer than others stand still as a rule: whoever shuts
    it again and again, or dies meanwhile, must not keep the caller from its work.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(_PATIENCE_MS)
