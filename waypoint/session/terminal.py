"""The daemon's end of a session's terminal: reads it into the ring, finds marks, wakes those who follow, writes what
is typed.

Nothing here runs unless the terminal says something or someone types: an idle session costs no wake-up.
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable

from shellwrap.marks import LONGEST, Mark, MarkScanner
from shellwrap.modes import DEFAULT, ModeTracker
from shellwrap.ring import Ring
from waypoint.linux import terminals
from waypoint.session.keyboard import Keyboard

# After a stop for want of room reading starts again only with so much room: small reads cost as much as large ones.
_ROOM_TO_RESUME = 1 << 18
# Rows and columns that shells and editors survive: zsh 5.9 crashes in a window of one column.
_SMALLEST = (2, 4)
_LARGEST = 10_000
# How much typed input may wait for a program that does not read before `typed` makes the client wait.
_TYPED_MAX = 1 << 16


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
        if not ring.end:  # new: its header has no modes yet, which would read as "cursor hidden, no wrapping"
            ring.modes = DEFAULT
        self.modes = ModeTracker(ring.modes, ring.alternate_from, ring.end)
        # The last bytes are scanned again, for a mark that the end cuts; whole ones among them were heard (or are
        # asked for by `marks`).
        self._scanner = MarkScanner(max(ring.start, ring.end - LONGEST))
        self._scanner.feed(ring.copy(self._scanner.settled, ring.end))
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []
        self._reading = False
        self._unwritten = bytearray()
        self._written = asyncio.Event()
        self._written.set()
        self._sizes: dict[object, tuple[int, int]] = {}
        self.size = terminals.window_size(master)
        self.keyboard = Keyboard(self)

    def start(self) -> None:
        """Begin to read. What is to hear the first marks must be in `on_mark` by now."""
        self._loop.add_reader(self.master, self._readable)
        self._reading = True

    def close(self) -> None:
        """Stop reading and give up the descriptor and the ring. The session's own master stays open, so it notices
        nothing.
        """
        if self.is_released:
            return
        self._loop.remove_reader(self.master)
        self._loop.remove_writer(self.master)
        os.close(self.master)
        self.master = -1
        self._end_streams()
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
        if (
            not self._reading
            and not self.closed.is_set()
            and self.ring.room >= min(_ROOM_TO_RESUME, self.ring.capacity // 4)
        ):
            self._loop.add_reader(self.master, self._readable)
            self._reading = True

    def append(self, data: bytes) -> None:
        """Put bytes of the daemon's own into the stream (a mark for the viewers)."""
        self.ring.append(data)
        self._take_in(data)

    def write(self, data: bytes) -> None:
        """Type `data`. Never blocks: what the terminal does not take now is written when it can."""
        if not self._unwritten:
            data = data[self._write_some(data) :]
        if data and not self.closed.is_set():
            if not self._unwritten:
                self._loop.add_writer(self.master, self._writable)
            self._unwritten += data
            if len(self._unwritten) > _TYPED_MAX:
                self._written.clear()

    async def wait_written(self) -> None:
        """Return when not too much typed input waits."""
        await self._written.wait()

    def resize(self, rows: int, cols: int) -> None:
        """Set the window size, within bounds; the foreground programs get SIGWINCH if it is new."""
        rows, cols = (max(low, min(n, _LARGEST)) for n, low in zip((rows, cols), _SMALLEST, strict=True))
        if not self.closed.is_set():
            terminals.set_window_size(self.master, rows, cols)
            self.size = rows, cols

    def set_viewer_size(self, viewer: object, rows: int, cols: int) -> None:
        """`viewer` shows the terminal in a window of this size: the terminal takes the smallest of all. Zeros: not
        known.
        """
        if rows > 0 and cols > 0:
            self._sizes[viewer] = rows, cols
            self.fit(self.size)

    def drop_viewer(self, viewer: object) -> None:
        """`viewer` has gone; after the last one the size stays as it is."""
        if self._sizes.pop(viewer, None):
            self.fit(self.size)

    def fit(self, default: tuple[int, int]) -> None:
        """Take the size that all viewers can show; `default` without any."""
        sizes = self._sizes.values()
        rows, cols = (min(rows for rows, _ in sizes), min(cols for _, cols in sizes)) if sizes else default
        if (rows, cols) != self.size:
            self.resize(rows, cols)

    def _readable(self) -> None:
        self.on_activity()
        position = self.ring.end
        try:
            count = self.ring.read_from(self.master)
        except EOFError:
            self._end()
            return
        if self.ring.room == 0:
            self._loop.remove_reader(self.master)
            self._reading = False
        if count:
            self._take_in(self.ring.copy(position, position + count))

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
        """Let everyone in `wait_more` look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self) -> None:
        self._loop.remove_reader(self.master)
        self._loop.remove_writer(self.master)
        self._end_streams()

    def _end_streams(self) -> None:
        self._reading = False
        self._unwritten.clear()
        self._written.set()
        self.closed.set()
        self.wake()

    def _write_some(self, data: bytes | bytearray) -> int:
        if self.closed.is_set():
            return len(data)
        with contextlib.suppress(BlockingIOError):
            try:
                return os.write(self.master, data)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return len(data)  # nobody is left to read it; the reader sees the end as well
        return 0

    def _writable(self) -> None:
        del self._unwritten[: self._write_some(self._unwritten)]
        if len(self._unwritten) <= _TYPED_MAX:
            self._written.set()
        if not self._unwritten and not self.closed.is_set():
            self._loop.remove_writer(self.master)


def _nothing() -> None:
    """Nobody asked to be told."""
