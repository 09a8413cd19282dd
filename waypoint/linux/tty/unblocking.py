"""Keeps calls on a terminal's master from blocking, even if the session makes the master blocking.

O_NONBLOCK is a flag of the open file description (open(2)), which the daemon shares with the session's pid 1. The
session's root can get the descriptor from pid 1 (pidfd_getfd(2)), clear the flag, and read the bytes that poll(2) has
just reported to the daemon. A tty does not support a flag for a single call (RWF_NOWAIT is refused). So a thread
watches whether a call takes too long. If so, it sets the flag again and interrupts the call, which then fails with
EAGAIN.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

LOOK_S = 0.05
"""The interval between two checks in seconds. A call may block the event loop for up to two intervals."""
_REST_S = 1.0  # the thread stops checking when there was no call for this long


class _Watchman:
    """Watches the calls of the main thread. There is at most one of these in a process."""

    def __init__(self) -> None:
        self._fd = -1
        self._calls = 0
        self._begun = threading.Event()
        self.freed = 0  # calls that had to be interrupted
        # After a signal whose handler returns, Python repeats the interrupted call (PEP 475).
        signal.signal(signal.SIGURG, lambda _number, _frame: None)
        threading.Thread(target=self._look_always, name="unblocking", daemon=True).start()

    def begin(self, fd: int) -> None:
        self._calls += 1
        self._fd = fd
        if not self._begun.is_set():
            self._begun.set()

    def end(self) -> None:
        self._fd = -1

    def _look_always(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while self._begun.wait():
            seen, quiet_since = -1, time.monotonic()
            while time.monotonic() - quiet_since < _REST_S:
                fd, calls = self._fd, self._calls
                if fd >= 0 and calls == seen:
                    with contextlib.suppress(OSError):  # the descriptor was closed in the meantime
                        self._free(fd, main)
                elif calls != seen:
                    seen, quiet_since = calls, time.monotonic()
                time.sleep(LOOK_S)
            self._begun.clear()

    def _free(self, fd: int, main: int) -> None:
        if os.get_blocking(fd):
            os.set_blocking(fd, False)
            self.freed += 1
            signal.pthread_kill(main, signal.SIGURG)


_watchman: _Watchman | None = None


@contextlib.contextmanager
def unblocked(fd: int) -> Iterator[list[int]]:
    """Keep a call on the master `fd` in the `with` block from blocking for longer than about two times LOOK_S: the call
    then raises BlockingIOError. Works in the main thread only; does nothing in other threads.

    Yields a list, which has an item after the block if the call had to be interrupted.
    """
    global _watchman
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    if _watchman is None:
        _watchman = _Watchman()
    before, told = _watchman.freed, list[int]()
    _watchman.begin(fd)
    try:
        yield told
    finally:
        _watchman.end()
        if _watchman.freed != before:
            told.append(fd)
