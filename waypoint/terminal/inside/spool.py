"""Requests of `waypoint` commands inside a session, and their answers, as files and FIFOs in the session's folder
(docs/protocol.md, section 3).

The folder belongs to the session's user. Names are therefore checked, links are not followed, reads and writes are
bounded and never block.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from waypoint.terminal.hooks.run_folder import RunFolder

BELL = "bell"
_NAME = re.compile(r"[arw]\.([0-9]{1,10}\.[0-9]{1,4})")
_MAX_REQUEST_BYTES = 4096
_MAX_ANSWER_BYTES = 1 << 20
_MAX_ANSWERED = 64  # clients from before, to which the same is said
_TAKE_S = 10.0  # how long a client may take nothing of an answer that is longer than what its FIFO holds
_MAX_SERVED = 8
"""Requests that are served at a time: the daemon works for all sessions. The others wait, and are served in turn."""
# A client opens its answer FIFO after it has written its request. Until then the daemon tries again: how often, and
# after how many seconds each.
_LOOKS, _LOOK_S = 200, 0.01


class Answer(NamedTuple):
    """The answer to a request: what the client prints, and its exit status."""

    exit: int
    text: str


OnRequest = Callable[[list[str]], Awaitable[Answer]]


class Spool:
    """The requests of one session. Costs nothing while there are none: a byte in the FIFO `bell` announces one."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._bell = -1
        self._on_request: OnRequest | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, on_request: OnRequest, restored: Answer | None = None) -> None:
        """Serve requests from now on. A request that an earlier daemon had begun to serve is answered with a failure.

        `restored`: the session was restored from a capture; this is the answer to every client that was captured while
        it waited, whatever it had asked. Raises OSError if the folder cannot be used.
        """
        self._on_request = on_request
        self._bell = self._folder.open_fifo(BELL)
        said = "waypoint: the daemon was replaced while it worked on this; see `waypoint log`\n"
        early = self._waiting("arw" if restored else "w")[:_MAX_ANSWERED]
        for ident in early:
            self._begin(self._give(ident, restored or Answer(125, said)))
        asyncio.get_running_loop().add_reader(self._bell, self._rung)
        if restored is None:
            self._look()

    def close(self) -> None:
        """Serve no more. Clients whose requests are being served are answered by the next daemon."""
        if self._bell >= 0:
            asyncio.get_running_loop().remove_reader(self._bell)
            os.close(self._bell)
            self._bell = -1
        for task in self._tasks:
            task.cancel()

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, _MAX_REQUEST_BYTES)
        self._look()

    def _look(self) -> None:
        for ident in self._waiting("r"):
            if len(self._tasks) >= _MAX_SERVED:
                break
            with contextlib.suppress(OSError):  # it was withdrawn meanwhile, or is no request
                self._folder.rename(f"r.{ident}", f"w.{ident}")
                self._begin(self._serve(ident))

    async def _serve(self, ident: str) -> None:
        assert self._on_request is not None
        try:
            text = self._folder.read(f"w.{ident}", _MAX_REQUEST_BYTES)
            answer = await self._on_request(text.decode(errors="surrogateescape").splitlines())
        except OSError as error:
            answer = Answer(125, f"waypoint: {error.strerror}\n")
        await self._give(ident, answer)

    async def _give(self, ident: str, answer: Answer) -> None:
        """Write the answer into the client's FIFO once the client has it open, then remove the request. Gives up after
        `_LOOKS` tries, or when the client has gone.
        """
        data = f"{answer.exit}\n{answer.text}".encode(errors="surrogateescape")[:_MAX_ANSWER_BYTES]
        for _look in range(_LOOKS):
            try:
                fd = self._folder.open_fifo_to_write(f"a.{ident}")
            except FileNotFoundError:  # the client has gone
                break
            except OSError:  # ENXIO: the client has not opened its FIFO yet
                await asyncio.sleep(_LOOK_S)
                continue
            try:
                with contextlib.suppress(OSError, TimeoutError):  # the client has gone, or stands still
                    await _pour(fd, data)
            finally:
                os.close(fd)
            break
        for kind in "rw":
            self._folder.remove(f"{kind}.{ident}")

    def _waiting(self, kinds: str) -> list[str]:
        """Ids of the clients with a file of one of `kinds`: `a` the FIFO for an answer, `r` a request, `w` a request
        that is being served.
        """
        found = (_NAME.fullmatch(name) for name in self._folder.names() if name[0] in kinds)
        return sorted({match[1] for match in found if match})

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        was_full = len(self._tasks) >= _MAX_SERVED
        self._tasks.discard(task)
        if was_full and self._bell >= 0:  # others may have waited for this one
            self._look()


async def _pour(fd: int, data: bytes) -> None:
    """Write `data` into the FIFO as its reader takes it. Raises OSError if the reader has gone, TimeoutError if the
    reader takes nothing for _TAKE_S seconds.
    """
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            writable = asyncio.Event()
            loop.add_writer(fd, writable.set)
            try:
                await asyncio.wait_for(writable.wait(), _TAKE_S)
            finally:
                loop.remove_writer(fd)
