"""The daemon's end of a session's terminal: reads output into the ring, finds marks, wakes the tasks that wait for
output, and writes input.

Nothing here runs unless the session prints or a client types, so an idle session costs no processor time.
"""

import asyncio
import os
from collections.abc import Callable

from shellwrap.marks import LONGEST, Mark, MarkScanner
from shellwrap.modes import DEFAULT, ModeTracker
from shellwrap.ring import Ring
from waypoint.terminal.keyboard import Keyboard
from waypoint.terminal.reader import TerminalReader
from waypoint.terminal.typed import TypedInput
from waypoint.terminal.window import Window


class Terminal:
    """Owns the master's file descriptor and the ring; `close` closes both. Use within one event loop."""

    def __init__(self, master: int, ring: Ring) -> None:
        """Make `master` non-blocking. `ring` may contain output that an earlier daemon has written."""
        os.set_blocking(master, False)
        self.master = master
        self.ring = ring
        self.closed = asyncio.Event()
        # Cleared while the session is frozen for a capture (`stand_still`). Code that changes the ring, the record of
        # the running command or the terminal's modes first waits for this event, and then makes the change without
        # another await. So all three are consistent in a capture.
        self.moving = asyncio.Event()
        self.moving.set()
        self.on_mark: list[Callable[[Mark], None]] = []
        # The id and nonce of a command that runs without output processing (OPOST). Viewers then put a CR before each
        # LF.
        self.raw_command: tuple[str, ...] = ()
        self.epitaph = ""  # the reason for the session's end, if the daemon knows the reason before the end
        if not ring.end:  # a new ring: no modes are in its header yet, which would mean "cursor hidden, no wrapping"
            ring.modes = DEFAULT
        self.modes = ModeTracker(ring.modes, ring.alternate_from, ring.end)
        # Scan the last bytes of the ring again, since an incomplete mark may begin there. Complete marks are ignored
        # here: the previous daemon has acted on them, or the caller gets them from `marks`.
        self._scanner = MarkScanner(max(ring.start, ring.end - LONGEST))
        self._scanner.feed(ring.copy(self._scanner.settled, ring.end))
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []
        self.reader = TerminalReader(master, ring, self._take_in, self._end)
        self.window = Window(master)
        self.typed = TypedInput(master)
        self.keyboard = Keyboard(master, self.typed)

    def start(self) -> None:
        """Begin to read. Functions that must get the first marks have to be in `on_mark` before."""
        self.reader.start()

    def close(self) -> None:
        """Stop reading, and close the descriptor and the ring. The session does not notice, since a process of the
        session has the master open, too.
        """
        if self.is_released:
            return
        self._end()
        os.close(self.master)
        self.master = -1
        self.ring.close()

    def finish(self) -> None:
        """Stop reading, because the session never runs again: `closed` is set. Does nothing after `close`."""
        if not self.is_released:
            self._end()

    @property
    def is_released(self) -> bool:
        """True after `close`: the daemon no longer serves this terminal, even if the session still runs."""
        return self.master < 0

    @property
    def settled(self) -> int:
        """The position up to which all marks are complete. An incomplete mark can only begin at or after this
        position.
        """
        return self.ring.end if self.closed.is_set() else self._scanner.settled

    def marks(self, position: int) -> list[Mark]:
        """Return the marks in the ring from `position` on, or from the ring's start if that is later."""
        position = max(position, self.ring.start)
        return MarkScanner(position).feed(self.ring.copy(position, self.ring.end))

    async def wait_more(self, position: int) -> None:
        """Return when `settled` is greater than `position`, the terminal is closed, or `wake` was called."""
        if self.settled <= position and not self.closed.is_set():
            await self.wait_news()

    async def wait_news(self) -> None:
        """Return when the session has printed more, or when `wake` was called."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def set_floor(self, position: int | None) -> None:
        """Do not overwrite the ring's bytes from `position` on: if the ring is full, stop reading from the terminal.
        None allows to overwrite all.
        """
        if self.is_released:
            return
        self.ring.floor = position
        self.reader.room_grew()

    def append(self, data: bytes) -> None:
        """Put `data` into the ring as if the session had printed it. Used for marks that the daemon adds for
        viewers.
        """
        self.ring.append(data)
        self._take_in(data)

    def stand_still(self) -> None:
        """Stop reading and typing until `go_on`, because the session is about to be frozen for a capture. In this time
        another thread may call `reader.drain` and the functions of standstill.py. Does nothing after `close`.
        """
        if self.is_released:
            return
        self.moving.clear()
        self.reader.hold()
        self.typed.hold()

    def go_on(self) -> None:
        """End `stand_still`. Does nothing if `stand_still` was not called, or after `close`."""
        if not self.is_released and not self.moving.is_set():
            self.moving.set()
            self.reader.release()
            self.typed.release()

    def _take_in(self, data: bytes) -> None:
        before = self.modes.bits
        self.modes.feed(data)
        if self.modes.bits != before:
            self.ring.modes, self.ring.alternate_from = self.modes.bits, self.modes.alternate_from
        for mark in self._scanner.feed(data):
            for hear in tuple(self.on_mark):
                hear(mark)
        self.wake()

    def wake(self) -> None:
        """Make all running calls of `wait_more` and `wait_news` return."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self) -> None:
        self.reader.close()
        self.typed.close()
        self.keyboard.close()
        self.moving.set()
        self.window.close()
        self.closed.set()
        self.wake()
