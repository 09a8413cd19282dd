"""The stdin of an exec: a FIFO in the session's own folder, fed from a client."""

import asyncio
import os
from collections import deque

from waypoint.session.exec.run_folder import RunFolder

# Input of a command that does not read waits here, so that a signal behind it in the client's stream is still seen.
QUEUE_MAX = 1 << 20


class InputFeed:
    """Queue of input for one FIFO. Made before the shell is asked, so that its open of the FIFO never waits."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        # Both ends: until the shell has the FIFO open nothing written may be lost, and nobody's open may wait.
        self._fd = folder.open_fifo(name)
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._at_end = False

    @property
    def is_open(self) -> bool:
        """True as long as the command may still get input: its end has not been passed on."""
        return self._fd >= 0

    async def put(self, data: bytes) -> None:
        """Queue input; empty: its end. Waits while too much is queued."""
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
        """Pass input on until its end has been, or nobody reads it any more. To be called once the shell has the FIFO
        open.
        """
        try:
            writer = self._folder.open_fifo_to_write(self._name)
            os.close(self._fd)  # now the command alone reads, and sees the end when we close
            self._fd = writer
            while self._queue or not self._at_end:
                if not self._queue:
                    self._news.clear()
                    await self._news.wait()
                    continue
                await self._write(self._queue.popleft())
        except OSError:
            return  # EPIPE, ENXIO: the command has closed its input; the rest is for nobody, as with `yes | head`
        finally:
            self.close()

    def end(self) -> None:
        """Nothing more comes: the command finds the end of its input behind what waits."""
        self._at_end = True
        self._news.set()

    def close(self) -> None:
        """Let go of the FIFO and drop what waits. Not before `run`: the shell would wait in its open; see `end`."""
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
