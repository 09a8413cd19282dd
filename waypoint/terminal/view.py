"""Viewers of a session: clients that are attached to its terminal, and readers of its logs.

Each viewer is a cursor over the ring. The session never waits for a viewer: one that falls behind what the ring holds
is repainted.
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
# Seconds that a full-screen program is given to redraw itself after a change of the window's size. The size is changed
# and then changed back; the program must have seen the first change before the second one, and the second one before
# anything is typed: vim 9 holds back keys that arrive together with a change until the next key.
_DRAW_S = 0.05


class _Viewer:
    """One attached client; `size`: rows and columns of its window."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size


class Viewers:
    """All viewers of one session. `count`: how many are attached."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.count = 0
        self._steady = asyncio.Event()  # set: no program is being made to redraw itself, so keystrokes need not wait
        self._steady.set()
        self._settling: asyncio.TimerHandle | None = None

    async def attach(self, inlet: Inlet, outlet: Outlet, rows: int, cols: int) -> tuple[int, int]:
        """Show the terminal to a client and type its keystrokes, until the client leaves or the terminal ends
        (`terminal.closed`). `rows` and `cols`: the size of the client's window. Returns its last rows and columns.
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
        """Send the scrollback; with `follow` also further output, until the client leaves or the terminal ends."""
        await _first(self._send_log(outlet, follow=follow), _wait_gone(inlet))

    async def _show(self, outlet: Outlet, *, is_new_size: bool) -> None:
        """Send the client a repaint, then the output that follows; repaint again whenever the client is too slow.

        `is_new_size`: the window's size has just changed, so a full-screen program redraws itself unasked.
        """
        terminal, ring = self._terminal, self._terminal.ring
        view: ViewFilter | None = None
        position = 0
        while True:
            if view is None or position < ring.start:  # new, or too slow: output that it has not seen is overwritten
                await terminal.moving.wait()  # drained output is in the ring, but its modes are tracked only afterwards
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
        """Make a full-screen program redraw itself. If its window has no new size, the size changes for a moment."""
        loop = asyncio.get_running_loop()
        drawn = loop.time() + _DRAW_S
        # If the size is new, one change is enough: vim 9 overlooks a change that comes while it redraws for another.
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
    """Rows and columns in a `w` frame (docs/protocol.md, section 2); None if its payload is not two 16-bit numbers."""
    if len(frame.payload) != 4:
        return None
    return int.from_bytes(frame.payload[:2], "big"), int.from_bytes(frame.payload[2:], "big")


async def _wait_gone(inlet: Inlet) -> None:
    with contextlib.suppress(ConnectionError):
        while await inlet.receive() is not None:
            pass


async def _first(*jobs: Coroutine[Any, Any, None]) -> None:
    """Run `jobs` until the first of them returns, and cancel the others. A ConnectionError (the client has gone) is not
    raised; any other exception of the first one is.
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
