"""The daemon's end of a session's terminal: reads it into the ring, finds marks, wakes those who follow, writes what
is typed.

Nothing here runs unless the terminal says something or someone types: an idle session costs no wake-up.
"""

import asyncio
import os
from collections.abc import Callable

from shellwrap.marks import LONGEST, Mark, MarkScanner
from shellwrap.modes import DEFAULT, ModeTracker
from shellwrap.ring import Ring
from waypoint.session.terminal.keyboard import Keyboard
from waypoint.session.terminal.reader import Reader
from waypoint.session.terminal.typed import TypedInput
from waypoint.session.terminal.window import Window


class Terminal:
    """Owns the master's file descriptor and the ring; `close` closes both. Use within one event loop."""

    def __init__(self, master: int, ring: Ring) -> None:
        """`master` becomes non-blocking. A ring with bytes in it is continued (the daemon before this one wrote
        them).
        """
        os.set_blocking(master, False)
        self.master = master
        self.ring = ring
        self.closed = asyncio.Event()
        self.on_mark: list[Callable[[Mark], None]] = []
        # Id and nonce of the command that runs without output processing: viewers show its lines as lines.
        self.raw_command: tuple[str, ...] = ()
        self.on_activity: Callable[[], None] = _nothing
        self.epitaph = ""  # why it ends, if it is known before
        if not ring.end:  # new: its header has no modes yet, which would read as "cursor hidden, no wrapping"
            ring.modes = DEFAULT
        self.modes = ModeTracker(ring.modes, ring.alternate_from, ring.end)
        # The last bytes are scanned again, for a mark that the end cuts; whole ones among them were heard (or are
        # asked for by `marks`).
        self._scanner = MarkScanner(max(ring.start, ring.end - LONGEST))
        self._scanner.feed(ring.copy(self._scanner.settled, ring.end))
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []
        self.reader = Reader(master, ring, self._take_in, self._end)
        self.window = Window(master)
        self.typed = TypedInput(master)
        self.keyboard = Keyboard(self)

    def start(self) -> None:
        """Begin to read. What is to hear the first marks must be in `on_mark` by now."""
        self.reader.start()

    def close(self) -> None:
        """Stop reading and give up the descriptor and the ring. The session's own master stays open, so it notices
        nothing.
        """
        if self.is_released:
            return
        self._end()
        os.close(self.master)
        self.master = -1
        self.ring.close()

    @property
    def is_released(self) -> bool:
        """True after `close`: the terminal may live, but it is not ours any more."""
        return self.master < 0

    @property
    def settled(self) -> int:
        """Everything before this position is surely not part of a mark that has not ended yet."""
        return self.ring.end if self.closed.is_set() else self._scanner.settled

    def marks(self, position: int) -> list[Mark]:
        """The marks in the ring from `position` on (or from its start, if that is later)."""
        position = max(position, self.ring.start)
        return MarkScanner(position).feed(self.ring.copy(position, self.ring.end))

    async def wait_more(self, position: int) -> None:
        """Return once there is a settled byte at `position`, or the terminal is closed, or someone called `wake`."""
        if self.settled <= position and not self.closed.is_set():
            await self.wait_news()

    async def wait_news(self) -> None:
        """Return when more was printed, or someone called `wake`."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def set_floor(self, position: int | None) -> None:
        """Keep the bytes from `position` on: reading stops rather than overwrite them. None: keep nothing."""
        if self.is_released:
            return
        self.ring.floor = position
        self.reader.room_grew()

    def append(self, data: bytes) -> None:
        """Put bytes of the daemon's own into the stream (a mark for the viewers)."""
        self.ring.append(data)
        self._take_in(data)

    def stand_still(self) -> None:
        """Read nothing and type nothing, until `go_on`: the session is about to be frozen."""
        self.reader.hold()
        self.typed.hold()

    def go_on(self) -> None:
        """After `stand_still`."""
        if not self.is_released:
            self.reader.release()
            self.typed.release()

    def _take_in(self, data: bytes) -> None:
        self.on_activity()
        before = self.modes.bits
        self.modes.feed(data)
        if self.modes.bits != before:
            self.ring.modes, self.ring.alternate_from = self.modes.bits, self.modes.alternate_from
        for mark in self._scanner.feed(data):
            for hear in tuple(self.on_mark):
                hear(mark)
        self.wake()

    def wake(self) -> None:
        """Let everyone in `wait_more` look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self) -> None:
        self.reader.close()
        self.typed.close()
        self.window.close()
        self.closed.set()
        self.wake()


def _nothing() -> None:
    """Nobody asked to be told."""
