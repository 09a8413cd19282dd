"""The queue of input to a terminal, typed by people or by the daemon. The kernel's own buffer holds only 4 KiB."""

import asyncio
import contextlib
import errno
import os

from waypoint.linux.tty import unblocking

# Bytes that may be queued for a program that does not read; with more, `wait_written` waits.
_WAITING_MAX = 1 << 16


class TypedInput:
    """Input for the terminal behind `master`, which must be non-blocking and stays the caller's to close."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._loop = asyncio.get_running_loop()
        self._unwritten = bytearray()
        self._held = False
        self._written = asyncio.Event()
        self._written.set()

    def write(self, data: bytes) -> None:
        """Type `data`. Never blocks: bytes that the terminal does not take now are queued and written when it does.
        After `close` they are dropped.
        """
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
        """Write nothing to the terminal until `release`; input is queued."""
        if self._unwritten and self._master >= 0:
            self._loop.remove_writer(self._master)
        self._held = True

    def release(self) -> None:
        """Write to the terminal again, the queued input first."""
        self._held = False
        if self._unwritten and self._master >= 0:
            self._loop.add_writer(self._master, self._writable)

    def close(self) -> None:
        """Drop the queue and stop using the master: the terminal has ended, or the caller is about to close it."""
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
                return len(data)  # EIO: nobody has the terminal open; the reader reports the end
        return 0

    def _writable(self) -> None:
        del self._unwritten[: self._write_some(self._unwritten)]
        if len(self._unwritten) <= _WAITING_MAX:
            self._written.set()
        if not self._unwritten:
            self._loop.remove_writer(self._master)
