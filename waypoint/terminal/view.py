"""Viewers of a session: clients that are attached to its terminal, and readers of its logs.

Each viewer is a cursor over the ring. The session never waits for a viewer: one that falls behind what the ring holds
is repainted.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from shellwrap import modes
from waypoint.model.requests import LogsRequest
from waypoint.model.streams import Frame, Inlet, Outlet
from waypoint.terminal.queries import Unasked
from waypoint.terminal.terminal import Terminal
from waypoint.terminal.view_filter import ViewFilter, open_view, repaint

_PIECE = 1 << 16
# After so many bytes of a log its reader is told the place anew, from which it can go on with another daemon.
_NOTED = 1 << 16
# Seconds that a full-screen program is given to redraw itself after a change of the window's size. The size is changed
# and then changed back; the program must have seen the first change before the second one, and the second one before
# anything is typed: vim 9 holds back keys that arrive together with a change until the next key.
_DRAW_S = 0.05


class _Viewer:
    """One attached client; `size`: rows and columns of its window."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size


class Viewers:
    """All viewers of one session. The last one that has come or typed is asked what programs ask of the terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._attached: list[_Viewer] = []  # the last one that has come or typed is the last
        self._steady = asyncio.Event()  # set: no program is being made to redraw itself, so keystrokes need not wait
        self._steady.set()
        self._settling: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """How many clients are attached."""
        return len(self._attached)

    async def attach(self, inlet: Inlet, outlet: Outlet, rows: int, cols: int) -> tuple[int, int]:
        """Show the terminal to a client and type its keystrokes, until the client leaves or the terminal ends
        (`terminal.closed`). `rows` and `cols`: the size of the client's window. Returns its last rows and columns.
        """
        viewer = _Viewer((rows, cols))
        self._attached.append(viewer)
        is_new_size = self._terminal.window.show(viewer, rows, cols)
        try:
            await _first(self._show(viewer, outlet, is_new_size=is_new_size), self._listen(viewer, inlet))
        finally:
            self._attached.remove(viewer)
            self._terminal.window.drop(viewer)
        return viewer.size

    async def logs(self, inlet: Inlet, outlet: Outlet, request: LogsRequest, session: str) -> None:
        """Send the scrollback; if it is to follow, also further output, until the client leaves or the terminal ends.

        `session`: by which name the client goes on with it, if it is cut.
        """
        await _first(self._send_log(outlet, request, session), _wait_gone(inlet))

    async def _show(self, viewer: _Viewer, outlet: Outlet, *, is_new_size: bool) -> None:
        """Send the client a repaint, then the output that follows; repaint again whenever the client is too slow.

        `is_new_size`: the window's size has just changed, so a full-screen program redraws itself unasked.
        """
        terminal, ring = self._terminal, self._terminal.ring
        view: ViewFilter | None = None
        position, unasked = 0, Unasked()
        while True:
            if view is None or position < ring.start:  # new, or too slow: output that it has not seen is overwritten
                await terminal.moving.wait()  # drained output is in the ring, but its modes are tracked only afterwards
                picture, view = repaint(ring, terminal.raw_command)
                position, unasked = ring.end, Unasked()
                if ring.modes & modes.ALTERNATE:
                    self._have_drawn(is_new_size=is_new_size)
                is_new_size = False
                await outlet.output(picture)
            elif position < ring.end:
                data = ring.copy(position, min(ring.end, position + _PIECE))
                position += len(data)
                if shown := unasked.feed(view.feed(data), asked=viewer is self._attached[-1]):
                    await outlet.output(shown)
            elif terminal.closed.is_set():
                return
            else:
                await terminal.wait_more(position)

    async def _listen(self, viewer: _Viewer, inlet: Inlet) -> None:
        with contextlib.suppress(ConnectionError):
            while (frame := await inlet.receive()) is not None:
                if frame.kind == "i":
                    self._attached.remove(viewer)
                    self._attached.append(viewer)
                    await self._steady.wait()
                    await self._terminal.keyboard.type(frame.payload)
                elif frame.kind == "w" and (size := window_size(frame)):
                    viewer.size = size
                    self._terminal.window.show(viewer, *size)

    async def _send_log(self, outlet: Outlet, request: LogsRequest, session: str) -> None:
        terminal, ring = self._terminal, self._terminal.ring
        stop = None if request.follow else ring.end
        view: ViewFilter | None = None
        position, skip, sent = request.position, request.offset, 0  # how many bytes were sent since the last note
        while stop is None or position < stop:
            if view is None or position < ring.start:  # new, or too slow
                is_known = bool(request.session) and ring.start <= position <= ring.end
                position, skip, sent = (position, skip, 0) if is_known else (ring.start, 0, _NOTED)
                view = open_view(ring, position, terminal.raw_command)
            if sent >= _NOTED and not skip and not view.holds:
                await outlet.note({"logs": {"session": session, "position": position}})
                sent = 0
            data = ring.copy(position, min(ring.end if stop is None else stop, position + _PIECE))
            position += len(data)
            if data:
                shown = view.feed(data)
                sent += len(shown)
                skip, shown = max(0, skip - len(shown)), shown[skip:]
                await outlet.output(shown)
            elif terminal.closed.is_set():
                break
            else:
                await terminal.wait_more(position)
        await outlet.output(view.finish() if view is not None else b"")

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
