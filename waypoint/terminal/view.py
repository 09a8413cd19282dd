"""Viewers of a session: clients that are attached to its terminal, and readers of its logs.

Each viewer has a position in the ring. The session never waits for a viewer: if the ring has overwritten output that a
viewer has not seen, the viewer's screen is repainted.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from shellwrap import modes
from waypoint.model.streams import Frame, Inlet, Outlet
from waypoint.terminal.terminal import Terminal
from waypoint.terminal.view_filter import ViewFilter, open_view, repaint

_PIECE = 1 << 16
# How many seconds a full-screen program gets to redraw itself after a change of the window's size. The size is changed
# and then changed back. The program must notice the first change before the second is made, and the second before
# anything is typed: if a key arrives together with a change, vim 9 does not act on the key until the next key.
_DRAW_S = 0.05


class _Viewer:
    """One attached client; `size`: rows and columns of its window."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size


class Viewers:
    """All viewers of one session. `count`: how many clients are attached."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.count = 0
        self._steady = asyncio.Event()  # cleared while a program redraws itself; keystrokes wait for it
        self._steady.set()
        self._settling: asyncio.TimerHandle | None = None

    async def attach(self, inlet: Inlet, outlet: Outlet, rows: int, cols: int) -> tuple[int, int]:
        """Show the terminal to a client and type the client's keystrokes, until the client leaves or the terminal ends
        (`terminal.closed`). `rows` and `cols`: the size of the client's window. Return the last size of that window.
        """
        viewer = _Viewer((rows, cols))
        self.count += 1
        is_new_size = self._terminal.window.show(viewer, rows, cols)
        try:
            await _first(self._show(outlet, is_new_size=is_new_size), self._listen(viewer, inlet))
        finally:
            self.count -= 1
            self._terminal.window.drop(viewer)
        return viewer.size

    async def logs(self, inlet: Inlet, outlet: Outlet, *, follow: bool) -> None:
        """Send the output in the ring. With `follow`, also send further output until the client leaves or the terminal
        ends.
        """
        await _first(self._send_log(outlet, follow=follow), _wait_gone(inlet))

    async def _show(self, outlet: Outlet, *, is_new_size: bool) -> None:
        """Paint the client's screen, then send the output that follows. Repaint the screen whenever the client is too
        slow.

        `is_new_size`: the window's size has just changed, so a full-screen program redraws itself anyway.
        """
        terminal, ring = self._terminal, self._terminal.ring
        view: ViewFilter | None = None
        position = 0
        while True:
            # A new client, or a client so slow that output which it has not seen was overwritten.
            if view is None or position < ring.start:
                # While the session is frozen, the ring may contain output whose changes of modes are not tracked yet.
                await terminal.moving.wait()
                picture, view = repaint(ring, terminal.raw_command)
                position = ring.end
                if ring.modes & modes.ALTERNATE:
                    self._have_drawn(is_new_size=is_new_size)
                is_new_size = False
                await outlet.output(picture)
            elif position < ring.end:
                data = ring.copy(position, min(ring.end, position + _PIECE))
                position += len(data)
                if shown := view.feed(data):
                    await outlet.output(shown)
            elif terminal.closed.is_set():
                return
            else:
                await terminal.wait_more(position)

    async def _listen(self, viewer: "_Viewer", inlet: Inlet) -> None:
        with contextlib.suppress(ConnectionError):
            while (frame := await inlet.receive()) is not None:
                if frame.kind == "i":
                    await self._steady.wait()
                    await self._terminal.keyboard.type(frame.payload)
                elif frame.kind == "w" and (size := window_size(frame)):
                    viewer.size = size
                    self._terminal.window.show(viewer, *size)

    async def _send_log(self, outlet: Outlet, *, follow: bool) -> None:
        terminal, ring = self._terminal, self._terminal.ring
        position = ring.start
        view = open_view(ring, position, terminal.raw_command)
        stop = None if follow else ring.end
        while stop is None or position < stop:
            if position < ring.start:
                position = ring.start
                view = open_view(ring, position, terminal.raw_command)
            data = ring.copy(position, min(ring.end if stop is None else stop, position + _PIECE))
            position += len(data)
            if data:
                await outlet.output(view.feed(data))
            elif terminal.closed.is_set():
                break
            else:
                await terminal.wait_more(position)
        await outlet.output(view.finish())

    def _have_drawn(self, *, is_new_size: bool) -> None:
        """Make a full-screen program redraw itself. Unless the window's size is new, change the size for a moment."""
        loop = asyncio.get_running_loop()
        drawn = loop.time() + _DRAW_S
        # If the size is new, no further change is made: vim 9 ignores a change while it redraws because of another.
        if not is_new_size:
            window = self._terminal.window
            rows, cols = window.size
            window.resize(rows - 1 if rows > 1 else 2, cols)
            loop.call_at(drawn, window.fit, (rows, cols))
            drawn += _DRAW_S
        self._steady.clear()
        if self._settling is not None:
            self._settling.cancel()
        self._settling = loop.call_at(drawn, self._steady.set)


def window_size(frame: Frame) -> tuple[int, int] | None:
    """Return rows and columns from a `w` frame (docs/protocol.md, section 2), or None if its payload is not two 16-bit
    numbers.
    """
    if len(frame.payload) != 4:
        return None
    return int.from_bytes(frame.payload[:2], "big"), int.from_bytes(frame.payload[2:], "big")


async def _wait_gone(inlet: Inlet) -> None:
    with contextlib.suppress(ConnectionError):
        while await inlet.receive() is not None:
            pass


async def _first(*jobs: Coroutine[Any, Any, None]) -> None:
    """Run `jobs` until the first job ends, and cancel the others. Raise the exception of the first job, unless it is a
    ConnectionError (the client has left).
    """
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            with contextlib.suppress(ConnectionError):
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
