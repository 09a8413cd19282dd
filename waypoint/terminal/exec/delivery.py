"""Sends a command's output to its client. The client's position is the ring's floor: the ring does not overwrite output
from the floor on, so the client loses nothing.
"""

import asyncio

from waypoint.model.streams import Outlet
from waypoint.terminal.exec.client import ClientGone, ExecClient
from waypoint.terminal.exec.command_record import End
from waypoint.terminal.exec.execution import Execution
from waypoint.terminal.terminal import Terminal

# How many seconds a new daemon keeps unread output for a client of the daemon that died.
RESUME_S = 10.0
_CHUNK = 1 << 18  # bytes sent at a time


class Delivery:
    """Delivers output to at most one client of a session at a time."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._reader: object = None

    async def serve(self, run: Execution, position: int, client: ExecClient) -> End:
        """Send output from ring position `position` on to the client, and the client's frames to the command, until the
        command ends. If the client leaves, raise ClientGone or ConnectionError; the command continues, and its stdin
        ends.
        """
        self._reader = client
        self._terminal.set_floor(position)
        client.listen(run, self._terminal)
        try:
            await client.wait_for(self._stream(run, position, client.outlet))
            end = await asyncio.shield(run.result)
        except (ClientGone, ConnectionError):
            if run.feed is not None:
                run.feed.end()
            self._forget(client)
            raise
        self._forget(client)  # not called after a cancellation, since the next daemon needs the floor
        return end

    def keep_for_a_while(self) -> None:
        """Keep the previous daemon's floor for RESUME_S, since the client may resume its stream."""
        if self._terminal.ring.floor is not None:
            asyncio.get_running_loop().call_later(RESUME_S, self._forget, self._reader)

    def keep_for(self, client: ExecClient) -> None:
        self._reader = client

    async def _stream(self, run: Execution, position: int, outlet: Outlet) -> None:
        terminal, record = self._terminal, run.record
        await run.started.wait()
        if record.start is None:
            return  # the command did not begin
        position = max(position, record.start)
        while record.stop is None or position < record.stop:
            if terminal.is_released:
                await asyncio.shield(run.result)  # cancelled if the daemon stops
            limit = run.output_limit
            if position < limit:
                chunk = terminal.ring.view(position, min(limit - position, _CHUNK))
                await outlet.output(chunk)
                position += len(chunk)
                chunk.release()
                if self._reader is not None:
                    terminal.set_floor(position)
            elif terminal.closed.is_set():
                await asyncio.shield(run.result)  # the command's end sets `stop`
                if position >= run.output_limit:
                    return  # no more output will come, even if `stop` is later
            else:
                await terminal.wait_news()

    def _forget(self, client: object) -> None:
        """Remove the ring's floor, unless another client has set it."""
        if self._reader is client:
            self._reader = None
            self._terminal.set_floor(None)
