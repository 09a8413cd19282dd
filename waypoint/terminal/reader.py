"""Reads a session's terminal into its ring, while the ring has room and the session is not frozen for a capture."""

import asyncio
import os
import time
from collections.abc import Callable

from shellwrap.ring import Ring
from waypoint.linux.tty import terminals, unblocking

# Reading stops when the ring is full, and resumes when it has this many bytes of room: a small read takes as long as a
# large one.
_ROOM_TO_RESUME = 1 << 18
# After a read of at least _LONG_READ bytes more output is likely to follow within _PATIENCE_S seconds, so the reader
# polls that long without sleeping. On machines whose idle processors wake up slowly, this is 2.6 times as fast as
# sleeping. The echo of a key is shorter than _LONG_READ.
_LONG_READ = 256
_PATIENCE_S = 60e-6
_SPILL_CHUNK = 1 << 16
_REST_S = 1.0
# A program that prints at full speed must not delay the daemon's other work. In one iteration of the event loop, a
# terminal may take about this many seconds for reading, and as many for processing what was read.
_TURN_S = 0.0005
_LARGEST_READ, _SMALLEST_READ = 1 << 16, 1 << 12
# After output that takes much longer to process than text, nothing is read for this many times the processing time.
_COSTLY_REST = 5.0


class TerminalReader:
    """The reader of one terminal. The caller owns `master` and `ring` and closes them."""

    def __init__(self, master: int, ring: Ring, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        """`on_data`: called with the bytes that were read, after they were put into the ring. `on_end`: called when no
        process has the terminal open any more.
        """
        self._master = master
        self._ring = ring
        self._on_data = on_data
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self._held = False
        self._rests = False
        self._spill = b""  # bytes that were read while the ring had no room
        self._drained_from: int | None = None
        self._budget = _LARGEST_READ  # how many bytes are read in one iteration of the event loop

    @property
    def spill(self) -> bytes:
        """The output that `drain` has read but that had no room in the ring. It follows the ring's last byte."""
        return self._spill

    @property
    def drained_from(self) -> int:
        """The position in the ring of the first byte that `drain` has read and that was not passed to `on_data` yet;
        the ring's end if there is no such byte.
        """
        return self._ring.end if self._drained_from is None else self._drained_from

    def start(self) -> None:
        """Begin to read. Does nothing after `hold`, during `_rest`, or after `close`."""
        if not self._reading and not self._held and not self._rests and self._master >= 0:
            self._loop.add_reader(self._master, self._readable)
            self._reading = True

    def room_grew(self) -> None:
        """Resume reading if it stopped because the ring was full, and the ring has enough room now."""
        if self._reading or self._held or self._ring.room < min(_ROOM_TO_RESUME, self._ring.capacity // 4):
            return
        self._put_spill()
        if not self._spill:
            self.start()

    def hold(self) -> None:
        """Stop reading until `release`."""
        self._stop()
        self._held = True

    def drain(self) -> None:
        """Read all output of the session from the terminal, so that CRIU finds an empty terminal. CRIU would restore
        unread output by writing it through the line discipline, which would change the output.

        Call this between `hold` and `release`, in any thread, while all processes of the session are frozen. The bytes
        go into the ring at once, so that they survive this process; bytes for which the ring has no room go into
        `spill`. `release` passes all of them to `on_data`. When a read finds nothing, no output is pending in the
        kernel either: n_tty_read calls tty_buffer_flush_work, which waits for the kernel's worker.
        """
        self._drained_from = self.drained_from
        if self._master >= 0:
            os.set_blocking(self._master, False)
        while self._master >= 0 and not self._spill and self._ring.room:
            try:
                if not self._ring.read_from(self._master):
                    return
            except EOFError:
                return  # the next read, after `release`, finds the end again and calls `on_end`
        while chunk := terminals.read_now(self._master, _SPILL_CHUNK) if self._master >= 0 else b"":
            self._spill += chunk

    def release(self) -> None:
        """End `hold`: pass the bytes that `drain` has read to `on_data`, and resume reading."""
        self._held = False
        position, self._drained_from = self.drained_from, None
        if position < self._ring.end:
            self._on_data(self._ring.copy(position, self._ring.end))
        self._put_spill()
        if not self._spill:
            self.start()

    def close(self) -> None:
        """Stop reading permanently."""
        self._stop()
        self._master = -1

    def _stop(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._master)
            self._reading = False

    def _readable(self) -> None:
        position, until = self._ring.end, time.monotonic() + _TURN_S

        def more_comes(count: int) -> bool:
            is_likely = count >= _LONG_READ and time.monotonic() < until
            return is_likely and terminals.wait_briefly(self._master, _PATIENCE_S)

        try:
            with unblocking.unblocked(self._master) as interrupted:
                count = self._ring.read_from(self._master, self._budget, more_comes)
        except EOFError:
            self.close()
            self._on_end()
            return
        if self._ring.room == 0:
            self._stop()
        elif interrupted:  # the session changes its terminal's modes very often, which slows reads: wait a while
            self._rest(_REST_S)
        if count:
            began = time.thread_time()
            self._on_data(self._ring.copy(position, position + count))
            # Processing marks and changes of modes takes up to a hundred times as long as text.
            cost_s = max(time.thread_time() - began, 1e-9)
            self._budget = max(_SMALLEST_READ, min(_LARGEST_READ, int(count * _TURN_S / cost_s)))
            if self._budget < _LARGEST_READ and self._reading and cost_s > _TURN_S / 2:
                self._rest(_COSTLY_REST * cost_s)

    def _rest(self, seconds: float) -> None:
        """Read nothing for `seconds`, even if `start` or `release` is called in this time."""
        self._stop()
        self._rests = True
        self._loop.call_later(seconds, self._rested)

    def _rested(self) -> None:
        self._rests = False
        self.room_grew()

    def _put_spill(self) -> None:
        part, self._spill = self._spill[: self._ring.room], self._spill[self._ring.room :]
        if part:
            self._ring.append(part)
            self._on_data(part)
