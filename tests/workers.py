"""The processes that run tests beside each other: what each is known by, what each starts with, and who waits for whom.

A worker is a process of pytest in which tests run: one of `-n`, or the only one of a run without it.
"""

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.homes import RUN_VARIABLE

USUAL: dict[signal.Signals, signal.Handlers | Callable[[int, FrameType | None], None]] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
"""SIGPIPE is missing: Python ignores it in itself, and `subprocess` sets it back in every child."""

WORKERS_PER_PROCESSOR = 2
"""Most of a test's time is waiting."""
MAX_WORKERS = 8
"""Each has homes, sessions and pools of its own at a time, which need memory and room on the disk."""

_NAME = "tests-"


def count() -> int:
    """How many workers a run has on this machine."""
    return min(WORKERS_PER_PROCESSOR * len(os.sched_getaffinity(0)), MAX_WORKERS)


def introduce() -> None:
    """Make this process known as a worker: its forks have its comm, and the programs that it starts RUN_VARIABLE."""
    os.environ[RUN_VARIABLE] = str(os.getpid())
    Path("/proc/self/comm").write_text(f"{_NAME}{os.getpid()}")


def worker_of(process: Path) -> int | None:
    """The pid of the worker whose fork or program this process (a folder of /proc) is, or which it is; None: nobody's.

    A fork has the comm of its worker; its environment is the one that the worker was started with, which is also the
    other workers'. A program has a comm of its own; its environment has RUN_VARIABLE. Raises OSError if it has ended.
    """
    comm = (process / "comm").read_text().strip()
    if comm.startswith(_NAME):
        return int(comm.removeprefix(_NAME))
    prefix = f"{RUN_VARIABLE}=".encode()
    words = (process / "environ").read_bytes().split(b"\0")
    return next((int(word.removeprefix(prefix)) for word in words if word.startswith(prefix)), None)


def start_as_usual() -> None:
    """Have the dispositions, the signal mask and the umask that programs expect, whatever the caller of pytest had.

    A shell starts `command &` and `nohup command` with signals ignored, and every child would inherit that: a test that
    interrupts a program would wait for its end for ever.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number, usual in USUAL.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)
    os.umask(0o022)


class Turns:
    """Who may run now: many tests beside each other, or one that is `alone`, for all workers that share `folder`.

    A test that is to be alone closes the gate, so that no other begins, and waits until those that run have ended. It
    leaves the gate closed for its successor in the same worker if that one is to be alone too.
    """

    def __init__(self, folder: Path) -> None:
        self._gate = os.open(folder / "gate", os.O_CREAT | os.O_RDWR, 0o600)
        self._floor = os.open(folder / "floor", os.O_CREAT | os.O_RDWR, 0o600)
        self._is_alone = False

    @contextlib.contextmanager
    def turn(self, item: pytest.Item, successor: pytest.Item | None) -> Iterator[None]:
        """Wait until `item` may run; the end of the `with` lets others run."""
        if is_alone(item) and not self._is_alone:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            fcntl.flock(self._floor, fcntl.LOCK_EX)
        elif not is_alone(item):
            fcntl.flock(self._gate, fcntl.LOCK_SH)
            fcntl.flock(self._floor, fcntl.LOCK_SH)
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            self._is_alone = is_alone(item) and successor is not None and is_alone(successor)
            if not self._is_alone:
                fcntl.flock(self._floor, fcntl.LOCK_UN)
                fcntl.flock(self._gate, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._gate)
        os.close(self._floor)


def is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None
