"""The stdin of an exec: a FIFO in the session's /run/waypoint, which the daemon fills with the client's input."""

import asyncio
import os
from collections import deque

from waypoint.terminal.hooks.run_folder import RunFolder

# How many bytes are queued for a command that does not read. Thanks to the queue, the daemon can read further in the
# client's stream, where a signal may follow the input.
QUEUE_MAX = 1 << 20


class InputFeed:
    """The queue of input for one FIFO. Create it before the shell is requested to run the command: the shell opens the
    FIFO for reading, which would block while no process has the FIFO open for writing.
    """

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        # Keep the FIFO open for reading and writing until the shell has opened it, so that neither side's open blocks.
        self._fd = folder.open_fifo(name)
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._at_end = False

    @property
    def is_open(self) -> bool:
        """True until the FIFO is closed. Until then, the command may get input."""
        return self._fd >= 0

    async def put(self, data: bytes) -> None:
        """Queue `data`. Empty data ends the input. Wait while more than QUEUE_MAX bytes are queued."""
        if not self.is_open or self._at_end:
            return
        if data:
            self._queue.append(data)
            self._queued += len(data)
        else:
            self._at_end = True
        self._news.set()
        while self._queued > QUEUE_MAX and self.is_open:
            self._taken.clear()
            await self._taken.wait()

    async def run(self) -> None:
        """Write queued input to the FIFO until the input's end, or until the command has closed its stdin. Then close
        the FIFO. Call this when the shell has opened the FIFO.
        """
        try:
            writer = self._folder.open_fifo_to_write(self._name)
            os.close(
                self._fd
            )  # now only the command has the FIFO open for reading, so a write fails (EPIPE) at its end
            self._fd = writer
            while self._queue or not self._at_end:
                if not self._queue:
                    self._news.clear()
                    await self._news.wait()
                    continue
                await self._write(self._queue.popleft())
        except OSError:
            return  # EPIPE, ENXIO: the command has closed its stdin; discard the rest, as in `yes | head`
        finally:
            self.close()

    def end(self) -> None:
        """End the input: the command sees the end of file after the queued bytes."""
        self._at_end = True
        self._news.set()

    def close(self) -> None:
        """Close the FIFO and discard the queue. Before `run`, call `end` instead, or the shell blocks when it opens the
        FIFO.
        """
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._queue.clear()
        self._queued = 0
        self._taken.set()

    async def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                count = os.write(self._fd, rest)
            except BlockingIOError:
                await self._wait_writable()
                continue
            rest = rest[count:]
        self._queued = max(0, self._queued - len(data))
        self._taken.set()

    async def _wait_writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self._fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._fd)
