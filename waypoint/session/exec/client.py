"""The client of one exec: its frames, and its leaving."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from waypoint.model.streams import Frame, Inlet, Outlet
from waypoint.session.exec.signals import NAMES
from waypoint.session.terminal.view import window_size

if TYPE_CHECKING:
    from waypoint.session.exec.execution import Execution
    from waypoint.session.terminal.terminal import Terminal

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
        self._terminal: Terminal | None = None
        self._listening = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    def listen(self, run: "Execution", terminal: "Terminal") -> None:
        """From now on frames go to `run`; if that uses the terminal, input is typed there, and the client is a viewer
        of it.
        """
        self._run, self._terminal = run, terminal
        self._listening.set()

    def close(self) -> None:
        """Read no more."""
        self._task.cancel()
        if self._terminal is not None:
            self._terminal.window.drop(self)

    def check_here(self) -> None:
        """Raises ClientGone if the client has gone or called its command off."""
        if self._gone.done():
            raise ClientGone(self._gone.result())

    async def wait_for(self, job: Coroutine[Any, Any, T]) -> T:
        """What `job` returns. Raises ClientGone, with `job` cancelled, if the client goes before."""
        task = asyncio.ensure_future(job)
        try:
            await asyncio.wait((task, self._gone), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientGone(self._gone.result())
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

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
                run.signals.put(NAMES[name])
            case "i":
                await self._listening.wait()  # nothing to give it to yet: the client is made to wait
                await self._input(frame.payload)
            case "w" if run is not None and run.record.tty and self._terminal is not None:
                if size := window_size(frame):
                    self._terminal.window.show(self, *size)
            case _:
                pass

    async def _input(self, data: bytes) -> None:
        if self._run is None or self._terminal is None:
            return
        if self._run.feed is not None:
            await self._run.feed.put(data)
        elif self._run.record.tty:
            await self._terminal.keyboard.type(data)
