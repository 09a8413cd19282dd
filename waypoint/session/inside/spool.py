"""What the session's processes ask, and the way back to them (docs/protocol.md, section 3).

The folder is the session user's: names are checked, nothing is followed, reads and writes are bounded, nothing blocks.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from waypoint.session.exec.run_folder import RunFolder

BELL = "bell"
_NAME = re.compile(r"[arw]\.([0-9]{1,10}\.[0-9]{1,4})")
_MAX_REQUEST_BYTES = 4096
_MAX_ANSWER_BYTES = 60_000  # less than a pipe takes without a reader
_MAX_WAITING = 64
# A client that has written its request opens its FIFO next: how often it is looked for, and how long in all.
_LOOKS, _LOOK_S = 200, 0.01


class Answer(NamedTuple):
    """What the client prints, and its exit status."""

    exit: int
    text: str


OnRequest = Callable[[list[str]], Awaitable[Answer]]


class Spool:
    """One session's. Nothing happens in it while nobody asks."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._bell = -1
        self._on_request: OnRequest | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, on_request: OnRequest, restored: Answer | None = None) -> None:
        """Serve what is asked, from now on. What another daemon had begun with is answered with a failure.

        `restored`: the answer to all who wait already, whatever they asked: they were captured waiting, and this is a
        copy. Raises OSError if the folder cannot be used.
        """
        self._on_request = on_request
        self._bell = self._folder.open_fifo(BELL)
        said = "waypoint: the daemon was replaced while it worked on this; see `waypoint log`\n"
        early = self._waiting("arw" if restored else "w")
        for ident in early:
            self._begin(self._give(ident, restored or Answer(125, said)))
        asyncio.get_running_loop().add_reader(self._bell, self._rung)
        if restored is None:
            self._look()

    def close(self) -> None:
        """Serve no more; what is being served is left to the next daemon."""
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
            with contextlib.suppress(OSError):  # called off meanwhile
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
        """Write the answer into the client's FIFO, once it has that open; give up if it never does."""
        data = f"{answer.exit}\n{answer.text}".encode(errors="surrogateescape")[:_MAX_ANSWER_BYTES]
        for _look in range(_LOOKS):
            try:
                fd = self._folder.open_fifo_to_write(f"a.{ident}")
            except FileNotFoundError:  # it has gone
                break
            except OSError:  # ENXIO: not there yet
                await asyncio.sleep(_LOOK_S)
                continue
            with contextlib.suppress(OSError):
                os.write(fd, data)
            os.close(fd)
            break
        for kind in "rw":
            self._folder.remove(f"{kind}.{ident}")

    def _waiting(self, kinds: str) -> list[str]:
        """Who has a file of one of these kinds: `a` an answer to be, `r` a request, `w` one that is worked on."""
        found = (_NAME.fullmatch(name) for name in self._folder.names() if name[0] in kinds)
        return sorted({match[1] for match in found if match})[:_MAX_WAITING]

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
