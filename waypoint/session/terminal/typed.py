"""What is typed at the terminal, by people or by the daemon, on its way into a kernel buffer of 4 KiB."""

import asyncio
import contextlib
import errno
import os

# How much typed input may wait for a program that does not read before `wait_written` makes the client wait.
_WAITING_MAX = 1 << 16


class TypedInput:
    """A queue in front of the non-blocking `master`, which stays the caller's."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._loop = asyncio.get_running_loop()
        self._unwritten = bytearray()
        self._held = False
        self._written = asyncio.Event()
        self._written.set()

    def write(self, data: bytes) -> None:
        """Type `data`. Never blocks: what the terminal does not take now is written when it can. Nothing after
        `close`.
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
        """Return when not too much typed input waits."""
        await self._written.wait()

    def hold(self) -> None:
        """Type nothing from now on: what comes waits until `release`."""
        if self._unwritten and self._master >= 0:
            self._loop.remove_writer(self._master)
        self._held = True

    def release(self) -> None:
        """Type again, what has waited first."""
        self._held = False
        if self._unwritten and self._master >= 0:
            self._loop.add_writer(self._master, self._writable)

    def close(self) -> None:
        """The terminal has ended, or is to be let go of: what waits is for nobody."""
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
                return os.write(self._master, data)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return len(data)  # nobody is left to read it; the reader sees the end as well
        return 0

    def _writable(self) -> None:
        del self._unwritten[: self._write_some(self._unwritten)]
        if len(self._unwritten) <= _WAITING_MAX:
            self._written.set()
        if not self._unwritten:
            self._loop.remove_writer(self._master)
