"""The client of one exec: reads its frames and detects when the client leaves."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from waypoint.model.streams import Frame, Inlet, Outlet
from waypoint.terminal.exec.signals import NAMES
from waypoint.terminal.view import window_size

if TYPE_CHECKING:
    from waypoint.terminal.exec.execution import Execution
    from waypoint.terminal.terminal import Terminal

T = TypeVar("T")
# Signals that cancel a command if it has not begun yet.
_LEAVING = frozenset({"INT", "TERM", "HUP", "QUIT", "KILL"})


class ClientGone(Exception):
    """The client has left, or has cancelled its command before the command began. The text says which."""


class ExecClient:
    """Reads a client's frames. It reads also while the command waits for earlier commands, to detect a disconnect at
    once.
    """

    def __init__(self, inlet: Inlet, outlet: Outlet, size: tuple[int, int] = (0, 0)) -> None:
        """`size`: rows and columns of the client's window; zeros: unknown."""
        self.outlet = outlet
        self._size = size
        self._inlet = inlet
        self._gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._run: Execution | None = None
        self._terminal: Terminal | None = None
        self._listening = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    def listen(self, run: "Execution", terminal: "Terminal") -> None:
        """Begin to pass frames to `run`. With `exec --tty`, the client's input is typed into the terminal, and the size
        of the client's window counts for the terminal's size before the command begins.
        """
        self._run, self._terminal = run, terminal
        self._show_window()
        self._listening.set()

    def close(self) -> None:
        self._task.cancel()
        if self._terminal is not None:
            self._terminal.window.drop(self)

    def check_here(self) -> None:
        """Raise ClientGone if the client has left or has cancelled its command."""
        if self._gone.done():
            raise ClientGone(self._gone.result())

    async def wait_for(self, job: Coroutine[Any, Any, T]) -> T:
        """Await `job`. If the client leaves first, cancel `job` and raise ClientGone."""
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
            self._leave("the client has disconnected; the command continues")
        except (ConnectionError, OSError):
            self._leave("the client has disconnected; the command continues")

    def _leave(self, said: str) -> None:
        if not self._gone.done():
            self._gone.set_result(said)

    async def _take(self, frame: Frame) -> None:
        name = frame.payload.decode("ascii", "replace")
        run = self._run
        match frame.kind:
            case "k" if run is None and name in _LEAVING:
                self._leave("the client cancelled the command before it began")
            case "k" if run is not None and name in NAMES:
                run.signal(NAMES[name])
            case "i":
                # No command accepts input yet. Read no further frames, so that the client blocks.
                await self._listening.wait()
                await self._input(frame.payload)
            case "w" if size := window_size(frame):
                self._size = size
                self._show_window()
            case _:
                pass

    def _show_window(self) -> None:
        if self._run is not None and self._run.record.tty and self._terminal is not None:
            self._terminal.window.show(self, *self._size)

    async def _input(self, data: bytes) -> None:
        if self._run is None or self._terminal is None:
            return
        if self._run.feed is not None:
            await self._run.feed.put(data)
        elif self._run.record.tty:
            await self._terminal.keyboard.type(data)
