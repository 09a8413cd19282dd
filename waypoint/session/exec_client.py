"""The client of one exec: its frames, and its leaving."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from waypoint.session.signals import NAMES
from waypoint.session.streams import Frame, Inlet, Outlet

if TYPE_CHECKING:
    from waypoint.session.execution import Execution

T = TypeVar("T")
# These take a command that has not begun out of the queue.
_LEAVING = frozenset({"INT", "TERM", "HUP", "QUIT", "KILL"})


class ClientGone(Exception):
    """The client has gone, or has called its command off before it began."""


class ExecClient:
    """Reads frames from the first moment, so that a client that leaves is noticed wherever its command is."""

    def __init__(self, inlet: Inlet, outlet: Outlet) -> None:
        self.outlet = outlet
        self._inlet = inlet
        self._gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._run: Execution | None = None
        self._type: Callable[[bytes], Awaitable[None]] | None = None
        self._listening = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    def listen(self, run: "Execution", type_text: Callable[[bytes], Awaitable[None]]) -> None:
        """From now on frames go to `run`; with a terminal, input is typed by `type_text`."""
        self._run, self._type = run, type_text
        self._listening.set()

    def close(self) -> None:
        self._task.cancel()

    async def wait_for(self, job: Coroutine[Any, Any, T]) -> T:
        """What `job` returns. Raises ClientGone, with `job` cancelled, if the client goes before."""
        task = asyncio.ensure_future(job)
        try:
            await asyncio.wait((task, self._gone), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientGone(self._gone.result())
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _read(self) -> None:
        try:
            while (frame := await self._inlet.receive()) is not None:
                await self._take(frame)
            self._leave("the client has gone; the command goes on")
        except (ConnectionError, OSError):
            self._leave("the client has gone; the command goes on")

    def _leave(self, said: str) -> None:
        if not self._gone.done():
            self._gone.set_result(said)

    async def _take(self, frame: Frame) -> None:
        name = frame.payload.decode("ascii", "replace")
        run = self._run
        match frame.kind:
            case "k" if run is None and name in _LEAVING:
                self._leave("called off before it began")
            case "k" if run is not None and name in NAMES:
                run.send(NAMES[name])
            case "i":
                await self._listening.wait()  # nothing to give it to yet: the client is made to wait
                await self._input(frame.payload)

    async def _input(self, data: bytes) -> None:
        run = self._run
        if run is None or self._type is None:
            return
        if run.feed is not None:
            await run.feed.put(data)
        elif run.record.tty and data:
            await self._type(data)
