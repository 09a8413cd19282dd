"""Reading a session's terminal into its ring: whenever it says something, as far as there is room, unless it stands
still.
"""

import asyncio
from collections.abc import Callable

from shellwrap.ring import Ring
from waypoint.linux import terminals

# After a stop for want of room reading starts again only with so much room: small reads cost as much as large ones.
_ROOM_TO_RESUME = 1 << 18
# A read of so many bytes is part of more, which is waited for on the processor: 2.6 times the rate of a plain loop of
# reads where idle processors wake up slowly. A key's echo is shorter.
_LONG_READ = 256
_PATIENCE_S = 60e-6
_SPILL_CHUNK = 1 << 16


class Reader:
    """One per terminal. `master` and `ring` stay the caller's."""

    def __init__(self, master: int, ring: Ring, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        """`on_data`: gets what was read, once it is in the ring. `on_end`: nobody has the terminal open any more."""
        self._master = master
        self._ring = ring
        self._on_data = on_data
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self._held = False
        self._spill = b""  # read while there was no room in the ring

    @property
    def spill(self) -> bytes:
        """What the terminal has printed behind the ring's end, while there was no room for it."""
        return self._spill

    def start(self) -> None:
        """Read what comes."""
        if not self._reading and not self._held and self._master >= 0:
            self._loop.add_reader(self._master, self._readable)
            self._reading = True

    def room_grew(self) -> None:
        """Go on, if it was for want of room that reading stopped, and there is enough of it now."""
        if self._reading or self._held or self._ring.room < min(_ROOM_TO_RESUME, self._ring.capacity // 4):
            return
        self._put_spill()
        if not self._spill:
            self.start()

    def hold(self) -> None:
        """Read nothing from now on, until `release`."""
        self._stop()
        self._held = True

    def drain(self) -> None:
        """While held, and with everybody who could print standing still: read all that was printed.

        CRIU would put what it finds in a terminal back through the line discipline, which mangles it. A read that finds
        nothing has waited for the kernel's worker (n_tty_read calls tty_buffer_flush_work), so nothing is on its way.
        """
        while self._master >= 0 and not self._spill and self._ring.room:
            position = self._ring.end
            try:
                count = self._ring.read_from(self._master)
            except EOFError:
                return  # told when reading goes on
            if not count:
                return
            self._on_data(self._ring.copy(position, position + count))
        while chunk := terminals.read_now(self._master, _SPILL_CHUNK) if self._master >= 0 else b"":
            self._spill += chunk

    def release(self) -> None:
        """Go on reading after `hold`."""
        self._held = False
        self._put_spill()
        if not self._spill:
            self.start()

    def close(self) -> None:
        """Read no more, for good."""
        self._stop()
        self._master = -1

    def _stop(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._master)
            self._reading = False

    def _readable(self) -> None:
        position = self._ring.end
        try:
            count = self._ring.read_from(self._master, more=self._more_comes)
        except EOFError:
            self.close()
            self._on_end()
            return
        if self._ring.room == 0:
            self._stop()
        if count:
            self._on_data(self._ring.copy(position, position + count))

    def _more_comes(self, count: int) -> bool:
        return count >= _LONG_READ and terminals.wait_briefly(self._master, _PATIENCE_S)

    def _put_spill(self) -> None:
        part, self._spill = self._spill[: self._ring.room], self._spill[self._ring.room :]
        if part:
            self._ring.append(part)
            self._on_data(part)
