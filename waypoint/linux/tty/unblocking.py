"""Calls on a terminal's master that must not wait, though somebody else may let them.

Whether a call waits is a flag of the open file description (O_NONBLOCK, open(2)). That of a session's master is shared
with the session's pid 1, from which the session's root can take it (pidfd_getfd(2)): it may clear the flag, and take
what poll(2) has just promised. A tty knows no flag of the single call (RWF_NOWAIT is refused). So a thread looks
whether a call takes too long; it sets the flag again and interrupts the call, which then finds that it would wait.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

LOOK_S = 0.05
"""Seconds between two looks, so half of what the event loop can lose by one call, on the average."""
_REST_S = 1.0  # the thread looks until there was no call for so long


class _Watchman:
    """Lives in a process once, for its main thread."""

    def __init__(self) -> None:
        self._fd = -1
        self._calls = 0
        self._begun = threading.Event()
        self.freed = 0  # calls that had to be interrupted
        # Python makes a call again that a signal has interrupted, if its handler returns (PEP 475).
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
                    with contextlib.suppress(OSError):  # it was closed meanwhile
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
    """A call on the master `fd` in the `with` block does not wait for longer than about two times LOOK_S, whatever
    others do: it raises BlockingIOError then. To be used in the main thread; does nothing in another one.

    Gives a list that has an item afterwards if a call had to be interrupted.
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
