"""The queue of input that people or the daemon type into a terminal. It is needed since the kernel's own buffer holds
only 4 KiB.
"""

import asyncio
import contextlib
import errno
import os

from waypoint.linux.tty import unblocking

# How many bytes may be queued for a program that does not read. While more are queued, `wait_written` waits.
_WAITING_MAX = 1 << 16


class TypedInput:
    """Writes input to the terminal whose master side is `master`. `master` must be non-blocking; the caller closes
    it. `count`: the bytes of all input so far, including what is queued.
    """

    def __init__(self, master: int) -> None:
        self._master = master
        self._loop = asyncio.get_running_loop()
        self.count = 0
        self._unwritten = bytearray()
        self._held = False
        self._written = asyncio.Event()
        self._written.set()

    def write(self, data: bytes) -> None:
        """Type `data`. Never blocks: bytes that the terminal does not accept now are queued and written later. After
        `close`, `data` is discarded.
        """
        self.count += len(data)
        if not self._unwritten and not self._held:
            data = data[self._write_some(data) :]
        if data:
            if not self._unwritten and not self._held:
                self._loop.add_writer(self._master, self._writable)
            self._unwritten += data
            if len(self._unwritten) > _WAITING_MAX:
                self._written.clear()

    async def wait_written(self) -> None:
        """Return when at most `_WAITING_MAX` bytes are queued."""
        await self._written.wait()

    def hold(self) -> None:
        """Write nothing to the terminal until `release`; queue the input instead."""
        if self._unwritten and self._master >= 0:
            self._loop.remove_writer(self._master)
        self._held = True

    def release(self) -> None:
        """Resume writing to the terminal, beginning with the queued input."""
        self._held = False
        if self._unwritten and self._master >= 0:
            self._loop.add_writer(self._master, self._writable)

    def close(self) -> None:
        """Discard the queue and stop using the master: the terminal has ended, or the caller is about to close it."""
        if self._master >= 0:
            self._loop.remove_writer(self._master)
            self._master = -1
        self._unwritten.clear()
        self._written.set()

    def _write_some(self, data: bytes | bytearray) -> int:
        if self._master < 0:
            return len(data)
        with contextlib.suppress(BlockingIOError):
            try:
                with unblocking.unblocked(self._master):
                    return os.write(self._master, data)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return len(data)  # EIO: no process has the terminal open; the reader reports the terminal's end
        return 0

    def _writable(self) -> None:
        del self._unwritten[: self._write_some(self._unwritten)]
        if len(self._unwritten) <= _WAITING_MAX:
            self._written.set()
        if not self._unwritten:
            self._loop.remove_writer(self._master)
