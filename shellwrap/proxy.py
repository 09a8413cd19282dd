"""The terminal proxy: shows something that lives elsewhere on the local terminal, as if it ran there.

It knows nothing of what is at the other end: that is a `Remote`, which may be a socket with a protocol or the master of
a pty. However it ends, the local terminal is left as it was found.
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
# No more is taken from one side while so much waits for the other.
MAX_WAITING_BYTES = 4 * READ_BYTES
_LEAVING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
_WATCHED = _LEAVING | {signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT}


class Remote(Protocol):
    """The other end. No method waits. What they raise ends the proxy and is passed on to its caller."""

    def fileno(self) -> int:
        """What becomes readable when there is something to receive. May change from call to call."""
        ...

    def receive(self) -> bytes | None:
        """Output that has arrived, b"" if there is none, None if no more will come."""
        ...

    def send(self, data: bytes) -> None:
        """Put input in line; `flush` sends it."""
        ...

    def flush(self) -> int:
        """Send what can be sent now; how many bytes are left in line."""
        ...

    def resize(self, rows: int, cols: int) -> None: ...

    def repaint(self) -> None:
        """The local screen has lost what it showed: send it again."""
        ...

    def due_s(self) -> float | None:
        """Seconds until `receive` wants to be called though nothing has arrived; None: never."""
        ...


class Why(StrEnum):
    OVER = "the other end has closed"
    DETACHED = "the detach key was struck"
    HUNG_UP = "the local terminal is gone"
    SIGNALLED = "a signal asked for it"


class Outcome(NamedTuple):
    why: Why
    signal: int = 0  # which one, if SIGNALLED


def run(
    remote: Remote,
    *,
    input_fd: int = 0,
    output_fd: int = 1,
    size: tuple[int, int] | None = None,
    detach_key: DetachKey | None = None,
) -> Outcome:
    """Connect the terminal `input_fd` (shown on `output_fd`) with `remote` until one of them ends it.

    `size`: rows and columns that the remote has been told already. Must be called in the main thread, as it takes over
    signals meanwhile: SIGWINCH, SIGTSTP, SIGCONT, and those that end it. If the remote closes, all its output is shown
    first. Raises termios.error if `input_fd` is not a terminal, and what `remote` raises.
    """
    with _signals() as signals_fd, LocalTerminal(input_fd, output_fd) as terminal:
        if terminal.size() != size:
            remote.resize(*terminal.size())
        return _Loop(remote, terminal, signals_fd, detach_key).run()


class _Loop:
    """The state between two waits."""

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
            outcome = self._take_signals() if self._signals_fd in ready else None
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
        """The descriptors that are ready. `queued`: how much waits to be sent to the remote."""
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
            if wanted:  # else a remote that has hung up would wake us again and again
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
        except OSError:  # EIO: the terminal has hung up; EPIPE: whoever reads stdout is gone
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
        numbers = list(os.read(self._signals_fd, 64))
        while numbers:
            number = numbers.pop(0)
            if number in _LEAVING:
                return Outcome(Why.SIGNALLED, number)
            if number == signal.SIGWINCH:
                self._remote.resize(*self._terminal.size())
            elif number == signal.SIGTSTP:
                numbers += self._suspend()
            elif number == signal.SIGCONT:  # after SIGSTOP, which nobody can catch
                self._come_back()
        return None

    def _suspend(self) -> list[int]:
        """Stop as the signal asks, the terminal as it was. Back after SIGCONT, with the signals that came behind it."""
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
    """The handler: nothing to do, as the interpreter has written the number into the wake-up descriptor."""


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A descriptor from which the numbers of signals can be read that arrive inside the `with`."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.getsignal(number) for number in _WATCHED}
    woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        for number in _WATCHED:
            # What our caller had us ignore (nohup) stays ignored.
            if before[number] != signal.SIG_IGN:
                signal.signal(number, _wake)
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(woken)
        os.close(reader)
        os.close(writer)
