"""A command in a session that another thread can end."""

import os
import threading
import time
from collections.abc import Callable

from waypoint.client.command import Command

Sink = Callable[[memoryview], None]
# `end` sends these signals, each after so many seconds if the command has not ended by then. A shell text may have
# several programs, one after the other, so KILL is sent several times.
ENDING = ((0.0, "INT"), (0.5, "TERM"), (0.5, "KILL"), *((0.1, "KILL"),) * 5)
GIVE_UP_S = 0.2  # after the last signal


class Running:
    """A command that `wait` follows in one thread, and that `end` may end from any thread. Used as a context manager,
    which closes its descriptors.
    """

    def __init__(self, home: str, branch: str, verb: str, request: dict[str, object]) -> None:
        """Send the request, as `Command` does. `verb`: `exec` or `run`."""
        self._over = threading.Event()
        self._lock = threading.Lock()  # of the pipe
        self._command = Command(home, branch, verb, request)
        self._reader, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._command.wake_fd = self._reader

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over.set()
            os.close(self._reader)
            os.close(self._waker)

    def wait(self, on_output: Sink, on_errors: Sink, content: bytes | None = None) -> dict[str, object]:
        """Follow the command like `Command.wait`, with `content` as its input. Raises TimeoutError if it has not ended
        although `end` has killed it.
        """
        if content is None:
            return self._command.wait(on_output, on_errors)
        from waypoint.client.sdk import readable_fd

        with readable_fd(content) as input_fd:
            return self._command.wait(on_output, on_errors, input_fd)

    def signal(self, name: str, grace_s: float | None = None) -> bool:
        """Send the command a signal; return False if it is over. `grace_s`: then `wait` waits for its end for so many
        seconds at most.
        """
        with self._lock:
            if self._over.is_set():
                return False
            if grace_s is not None:
                self._command.deadline = time.monotonic() + grace_s
            self._command.queue_signal(name)
            os.write(self._waker, b"\0")
            return True

    def end(self) -> None:
        """Interrupt the command as Ctrl-C does; if it does not end, terminate it, and kill it. Returns when it has
        ended, or after its last signal.
        """
        left_s = sum(pause_s for pause_s, _ in ENDING) + GIVE_UP_S
        for pause_s, name in ENDING:
            if self._over.wait(pause_s) or not self.signal(name, left_s := left_s - pause_s):
                return
