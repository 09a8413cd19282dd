"""One client's socket: waiting for it and moving bytes, with nothing lost when the waiting task is cancelled.

asyncio's own `sock_recv` and `sock_sendall` are not used: cancelled at the wrong moment, the first forgets bytes that
it has taken and the second does not say how many it has sent. Here the wait and the system call are two steps, and only
the wait can be cancelled.
"""

import asyncio
import contextlib
import select
import socket
import struct
from collections.abc import Callable, Iterator

from waypoint.service.shapes import Peer

RECEIVE_BYTES = 65536
_CREDENTIALS = struct.Struct("3i")


class Connection:
    """A connected, non-blocking stream socket. At most one task receives and one sends at a time."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock` belongs to this object, and `close` closes it. To be made in a running event loop."""
        sock.settimeout(0)
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self.peer = Peer(
            *_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        )

    async def receive(self) -> bytes:
        """What has arrived, at least one byte; b"" once the other side has closed or shut down. Safe to cancel: no byte
        is lost.
        """
        while (data := self.receive_now()) is None:
            await self._wait(self._loop.add_reader, self._loop.remove_reader)
        return data

    def receive_now(self) -> bytes | None:
        """As `receive`; None if nothing has arrived."""
        try:
            return self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None

    async def wait_writable(self) -> None:
        await self._wait(self._loop.add_writer, self._loop.remove_writer)

    def send_now(self, parts: list[bytes | memoryview]) -> int:
        """Hand `parts` to the socket in one sendmsg(2); returns how many bytes it took, 0 if it is full.

        Copies nothing in user space.
        """
        try:
            return self._sock.sendmsg(parts)
        except BlockingIOError:
            return 0

    async def send(self, data: bytes) -> None:
        """Send all of `data`. If cancelled, the connection is good for nothing but `close`."""
        rest = memoryview(data)
        while rest:
            sent = self.send_now([rest])
            rest = rest[sent:]
            if not sent:
                await self.wait_writable()

    async def hang_up(self, patience_s: float) -> None:
        """Say that no more will come, then wait until the other side closes too, at most `patience_s`.

        Closing at once, with unread bytes in the socket, would make the client's next call fail (ECONNRESET, EPIPE)
        before it has read our answer.
        """
        with contextlib.suppress(OSError, TimeoutError):
            self._sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(patience_s):
                while await self.receive():
                    pass

    def close(self) -> None:
        """No task may be waiting on the connection."""
        self._sock.close()

    @contextlib.contextmanager
    def given_up_with_client(self) -> Iterator[None]:
        """Cancel what the current task does in the `with` block as soon as the client has closed; then raise
        ConnectionError.

        A client that has only shut down its sending side still reads, and is no reason. Reads nothing.
        """
        task, is_gone = asyncio.current_task(), False
        assert task is not None

        def give_up() -> None:
            nonlocal is_gone
            self._loop.remove_reader(watch.fileno())
            is_gone = True
            task.cancel()

        with select.epoll() as watch:
            watch.register(self._fd, 0)  # nothing but EPOLLHUP and EPOLLERR, which the kernel always reports
            self._loop.add_reader(watch.fileno(), give_up)
            try:
                yield
            except asyncio.CancelledError:
                if is_gone and task.uncancel() == 0:
                    raise ConnectionResetError("the client has closed the connection") from None
                raise
            finally:
                self._loop.remove_reader(watch.fileno())

    async def _wait(self, watch: Callable[..., object], unwatch: Callable[[int], object]) -> None:
        ready = self._loop.create_future()
        watch(self._fd, _set_ready, ready)
        try:
            await ready
        finally:
            unwatch(self._fd)


def _set_ready(ready: asyncio.Future[None]) -> None:
    # A level-triggered selector may report the socket again before the woken task has run.
    if not ready.done():
        ready.set_result(None)
