"""A command's output on its way to the client that asked for it. What it has not taken yet is kept in the ring."""

import asyncio

from waypoint.model.streams import Outlet
from waypoint.session.exec.client import ClientGone, ExecClient
from waypoint.session.exec.execution import Execution
from waypoint.session.exec.record import End
from waypoint.session.terminal.terminal import Terminal

# How long output is kept for the client of a command whose daemon died.
RESUME_S = 10.0
_CHUNK = 1 << 18


class Delivery:
    """One per session: at most one client's position in the output is the ring's floor."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._reader: object = None

    async def serve(self, run: Execution, position: int, client: ExecClient) -> End:
        """Stream the command's output to its client, and the client's frames to the command, to the end of either.

        Raises ClientGone or ConnectionError when the client goes; the command goes on without input.
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
        self._forget(client)  # not if this is cancelled: the daemon stops, and the next one will want the output
        return end

    def keep_for_a_while(self) -> None:
        """Keep what the last daemon kept, for RESUME_S: the client may ask for it."""
        if self._terminal.ring.floor is not None:
            asyncio.get_running_loop().call_later(RESUME_S, self._forget, self._reader)

    def keep_for(self, client: ExecClient) -> None:
        """Keep what is kept until `client` has taken it."""
        self._reader = client

    async def _stream(self, run: Execution, position: int, outlet: Outlet) -> None:
        terminal, record = self._terminal, run.record
        await run.started.wait()
        if record.start is None:
            return  # it did not begin
        position = max(position, record.start)
        while record.stop is None or position < record.stop:
            if terminal.is_released:
                await asyncio.shield(run.result)  # cancelled
            limit = run.output_limit
            if position < limit:
                chunk = terminal.ring.view(position, min(limit - position, _CHUNK))
                await outlet.output(chunk)
                position += len(chunk)
                chunk.release()
                if self._reader is not None:
                    terminal.set_floor(position)
            elif terminal.closed.is_set():
                await asyncio.shield(run.result)  # the end sets `stop`
            else:
                await terminal.wait_news()

    def _forget(self, client: object) -> None:
        """Stop keeping output, if it was for `client`."""
        if self._reader is client:
            self._reader = None
            self._terminal.set_floor(None)
