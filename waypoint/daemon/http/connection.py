"""One client's socket: receiving and sending bytes in tasks that may be cancelled without losing a byte.

asyncio's own `sock_recv` and `sock_sendall` are not used: if cancelled at the wrong moment, `sock_recv` loses received
bytes, and `sock_sendall` does not report how many bytes it has sent. Here the wait and the system call are two steps,
and only the wait can be cancelled.
"""

import asyncio
import contextlib
import select
import socket
import struct
from collections.abc import Callable, Iterator, Sequence

from waypoint.service.shapes import Peer

RECEIVE_BYTES = 65536
_CREDENTIALS = struct.Struct("3i")


class Connection:
    """A connected, non-blocking stream socket. At most one task receives and one sends at a time."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock` belongs to this object; `close` closes it. Must be called in a running event loop."""
        sock.settimeout(0)
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self.peer = Peer(
            *_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        )

    async def receive(self) -> bytes:
        """Wait for at least one byte and return the received bytes; b"" if the client has closed the connection or its
        sending side. No byte is lost if the task is cancelled.
        """
        while (data := self.receive_now()) is None:
            await self._wait(self._loop.add_reader, self._loop.remove_reader)
        return data

    def receive_now(self) -> bytes | None:
        """Return the received bytes like `receive`, but None instead of waiting if nothing has arrived."""
        try:
            return self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None

    async def wait_writable(self) -> None:
        await self._wait(self._loop.add_writer, self._loop.remove_writer)

    def send_now(self, parts: list[bytes | memoryview], descriptors: Sequence[int] = ()) -> int:
        """Send `parts` with one sendmsg(2), without copying them, and with the first byte the descriptors. Returns how
        many bytes were sent; 0 if the socket's buffer is full.
        """
        try:
            if descriptors:
                return socket.send_fds(self._sock, parts, list(descriptors))
            return self._sock.sendmsg(parts)
        except BlockingIOError:
            return 0

    async def send(self, data: bytes) -> None:
        """Send all of `data`. If the call is cancelled, only `close` may be called afterwards."""
        rest = memoryview(data)
        while rest:
            sent = self.send_now([rest])
            rest = rest[sent:]
            if not sent:
                await self.wait_writable()

    async def hang_up(self, patience_s: float) -> None:
        """Shut down the sending side, then wait at most `patience_s` seconds until the client closes, too.

        If the daemon closed the socket at once, with unread bytes in it, the client's next call would fail (ECONNRESET,
        EPIPE) before the client has read the answer.
        """
        with contextlib.suppress(OSError, TimeoutError):
            self._sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(patience_s):
                while await self.receive():
                    pass

    def close(self) -> None:
        """Close the socket. No task may be waiting for it."""
        self._sock.close()

    @contextlib.contextmanager
    def given_up_with_client(self) -> Iterator[None]:
        """As soon as the client has closed the connection, interrupt the `with` block with a ConnectionError.

        A client that has only shut down its sending side still reads, so the block continues. Nothing is read here.
        """
        task, is_gone = asyncio.current_task(), False
        assert task is not None

        def give_up() -> None:
            nonlocal is_gone
            self._loop.remove_reader(watch.fileno())
            is_gone = True
            task.cancel()

        with select.epoll() as watch:
            watch.register(self._fd, 0)  # only EPOLLHUP and EPOLLERR, which the kernel always reports
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
