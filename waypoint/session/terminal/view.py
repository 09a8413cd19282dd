"""Terminals attached to a session, and its logs: cursors over the ring that the session never waits for."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from shellwrap import modes
from waypoint.model.streams import Frame, Inlet, Outlet
from waypoint.session.terminal.terminal import Terminal
from waypoint.session.terminal.view_filter import ViewFilter, open_view, repaint

_PIECE = 1 << 16
# A full-screen program draws itself again when the size changes. It must have seen the first change before it is
# undone, and that before anything is typed: vim 9 forgets keys that come together with a change, until the next key.
_DRAW_S = 0.05


class _Viewer:
    """Who watches, and how large their window is."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size


class Viewers:
    """All that watch one session."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.count = 0
        self._steady = asyncio.Event()  # what is typed need not wait
        self._steady.set()
        self._settling: asyncio.TimerHandle | None = None

    async def attach(self, inlet: Inlet, outlet: Outlet, rows: int, cols: int) -> tuple[int, int]:
        """Show the terminal and type what comes; returns when the client has left or the terminal has ended
        (`terminal.closed`): rows and columns of the client's window at last.
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
        """Send the scrollback; with `follow` go on with what comes, until the client has left or the terminal has
        ended.
        """
        await _first(self._send_log(outlet, follow=follow), _wait_gone(inlet))

    async def _show(self, outlet: Outlet, *, is_new_size: bool) -> None:
        """`is_new_size`: a full-screen program draws itself again anyhow."""
        terminal, ring = self._terminal, self._terminal.ring
        view: ViewFilter | None = None
        position = 0
        while True:
            if view is None or position < ring.start:  # new, or too slow: what it has missed is overwritten
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
        """Let a full-screen program draw itself: it has seen a new size, or is shown one for a moment."""
        loop = asyncio.get_running_loop()
        drawn = loop.time() + _DRAW_S
        # Not on top of another change: vim 9 overlooks one that comes while it draws itself because of the last.
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
    """Rows and columns of a `w` frame; None if it has not two numbers."""
    if len(frame.payload) != 4:
        return None
    return int.from_bytes(frame.payload[:2], "big"), int.from_bytes(frame.payload[2:], "big")


async def _wait_gone(inlet: Inlet) -> None:
    with contextlib.suppress(ConnectionError):
        while await inlet.receive() is not None:
            pass


async def _first(*jobs: Coroutine[Any, Any, None]) -> None:
    """Until the first of `jobs` returns; the others are cancelled. A client that has gone is no error."""
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
