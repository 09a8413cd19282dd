"""The terminal proxy: connects the local terminal with a remote one, as if the remote program ran locally.

The other end is any object with the interface `Remote`, such as a socket with a protocol or the master of a pty. The
local terminal is restored however the proxy ends.
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple, Protocol

from shellwrap.detach_key import DetachKey
from shellwrap.local_terminal import LocalTerminal

READ_BYTES = 65536
# Bytes buffered for each side. When one side's buffer is full, the proxy stops reading the other side.
MAX_WAITING_BYTES = 4 * READ_BYTES
_LEAVING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
_WATCHED = _LEAVING | {signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT}


class Remote(Protocol):
    """The other end. No method may block. An exception of a method ends the proxy, and `run` raises it."""

    def fileno(self) -> int:
        """The descriptor that is readable when there is output to receive. May change from call to call."""
        ...

    def receive(self) -> bytes | None:
        """Output that has arrived, b"" if there is none, None if no more will come."""
        ...

    def send(self, data: bytes) -> None:
        """Append input to the buffer that `flush` sends."""
        ...

    def flush(self) -> int:
        """Send what can be sent without blocking. Return how many bytes are left in the buffer."""
        ...

    def resize(self, rows: int, cols: int) -> None:
        """Tell the other end the size of the local terminal."""
        ...

    def repaint(self) -> None:
        """Send the screen's content again: the local terminal has lost it."""
        ...

    def due_s(self) -> float | None:
        """Seconds after which `receive` must be called even if nothing has arrived; None: never."""
        ...


class Why(StrEnum):
    """Why the proxy has ended."""

    OVER = "the other end has closed"
    DETACHED = "the detach key was struck"
    HUNG_UP = "the local terminal is gone"
    SIGNALLED = "a signal asked for it"


class Outcome(NamedTuple):
    """The result of `run`."""

    why: Why
    signal: int = 0  # its number, if `why` is SIGNALLED


def run(
    remote: Remote,
    *,
    input_fd: int = 0,
    output_fd: int = 1,
    size: tuple[int, int] | None = None,
    detach_key: DetachKey | None = None,
) -> Outcome:
    """Connect the terminal `input_fd`, whose output goes to `output_fd`, with `remote` until one of them ends.

    `size`: rows and columns that the remote has been told already. If the remote closes, all its output is shown first.
    Must be called in the main thread: the function handles SIGWINCH, SIGTSTP, SIGCONT, SIGHUP, SIGINT, SIGQUIT and
    SIGTERM until it returns. Raises termios.error if `input_fd` is not a terminal, and whatever `remote` raises.
    """
    with _signals() as signals_fd, LocalTerminal(input_fd, output_fd) as terminal:
        if terminal.size() != size:
            remote.resize(*terminal.size())
        return _Loop(remote, terminal, signals_fd, detach_key).run()


class _Loop:
    """The proxy's loop: buffered output, and one method for each side that can be ready."""

    def __init__(self, remote: Remote, terminal: LocalTerminal, signals_fd: int, detach_key: DetachKey | None) -> None:
        self._remote = remote
        self._terminal = terminal
        self._signals_fd = signals_fd
        self._detach_key = detach_key
        self._output = bytearray()  # received, not yet shown
        self._is_over = False

    def run(self) -> Outcome:
        while not self._is_over or self._output:
            ready = self._wait(self._remote.flush())
            # A signal that came before the input may be seen only now: poll looks at the descriptors, then the handler
            # runs. Without this a key that follows a change of the window's size would act in a window of the old size.
            outcome = self._take_signals() if {self._signals_fd, self._terminal.input_fd} & ready else None
            if outcome is None and self._terminal.output_fd in ready:
                outcome = self._show()
            if outcome is None and self._terminal.input_fd in ready:
                outcome = self._take_input()
            if outcome is not None:
                return outcome
            if not self._is_over and len(self._output) < MAX_WAITING_BYTES:
                self._receive()
        return Outcome(Why.OVER)

    def _wait(self, queued: int) -> set[int]:
        """Wait until a descriptor is ready and return the ready ones. `queued`: bytes that the remote has not sent."""
        poll = select.poll()
        poll.register(self._signals_fd, select.POLLIN)
        if self._output:
            poll.register(self._terminal.output_fd, select.POLLOUT)
        due_s = None
        if not self._is_over:
            if queued < MAX_WAITING_BYTES:
                poll.register(self._terminal.input_fd, select.POLLIN)
            wanted = select.POLLOUT if queued else 0
            if len(self._output) < MAX_WAITING_BYTES:
                wanted |= select.POLLIN
                due_s = self._remote.due_s()
            if wanted:  # else poll would return at once, again and again, for a remote that has hung up
                poll.register(self._remote.fileno(), wanted)
        return {fd for fd, _ in poll.poll(None if due_s is None else max(0.0, due_s) * 1000)}

    def _receive(self) -> None:
        data = self._remote.receive()
        if data is None:
            self._is_over = True
        elif data:
            self._terminal.shown.feed(data)
            self._output += data
            self._show()

    def _show(self) -> Outcome | None:
        try:
            shown = os.write(self._terminal.output_fd, self._output)
        except BlockingIOError:
            return None
        except OSError:  # EIO: the terminal has hung up; EPIPE: the reader of stdout is gone
            return Outcome(Why.HUNG_UP)
        del self._output[:shown]
        return None

    def _take_input(self) -> Outcome | None:
        try:
            typed = os.read(self._terminal.input_fd, READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            typed = b""
        if not typed:
            return Outcome(Why.HUNG_UP)
        is_struck = False
        if self._detach_key is not None:
            typed, is_struck = self._detach_key.feed(typed)
        if typed:
            self._remote.send(typed)
            self._remote.flush()
        return Outcome(Why.DETACHED) if is_struck else None

    def _take_signals(self) -> Outcome | None:
        try:
            numbers = list(os.read(self._signals_fd, 64))
        except BlockingIOError:
            return None
        while numbers:
            # A hang-up sends SIGHUP and SIGCONT, whose handlers run in any order. Then the terminal cannot be set up.
            leaving = next((number for number in numbers if number in _LEAVING), None)
            if leaving is not None:
                return Outcome(Why.SIGNALLED, leaving)
            number = numbers.pop(0)
            if number == signal.SIGWINCH:
                self._remote.resize(*self._terminal.size())
            elif number == signal.SIGTSTP:
                numbers += self._suspend()
            elif number == signal.SIGCONT:  # after SIGSTOP, which cannot be caught
                self._come_back()
        return None

    def _suspend(self) -> list[int]:
        """Restore the terminal and stop this process. After SIGCONT, return the signals that arrived meanwhile."""
        self._terminal.restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, _wake)
        self._come_back()
        with contextlib.suppress(BlockingIOError):
            return [number for number in os.read(self._signals_fd, 64) if number != signal.SIGCONT]
        return []

    def _come_back(self) -> None:
        self._terminal.make_raw()
        self._remote.resize(*self._terminal.size())
        self._remote.repaint()


def _wake(number: int, frame: object) -> None:
    """A handler without effect: the interpreter writes the signal's number into the wake-up descriptor."""


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A non-blocking descriptor from which the numbers of the signals that arrive inside the `with` can be read."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.getsignal(number) for number in _WATCHED}
    woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        for number in _WATCHED:
            # A signal that the caller ignores (nohup) stays ignored.
            if before[number] != signal.SIG_IGN:
                signal.signal(number, _wake)
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(woken)
        os.close(reader)
        os.close(writer)
