"""Datagrams to a published UDP port of a session, and the answers to them: each client has a socket of its own in the
session's network, which knows by its number whom an answer is for.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Sequence
from functools import partial

IDLE_S = 120.0  # without a datagram; then a client's socket is closed, and its next datagram comes from another port
_MOST = 400  # clients at a time: beyond, the one that has been silent for the longest gives way
_PIECE = 1 << 16
_TELL_REFUSED = ((socket.IPPROTO_IP, 11), (socket.IPPROTO_IPV6, 25))  # IP_RECVERR, IPV6_RECVERR (linux/in.h, in6.h)
_AT_ONCE = 64  # datagrams that are read before others have their turn

Ways = Sequence[tuple[str, str]]
"""Addresses at which the session may listen, each with that which the datagrams come from; tried in this order."""


class Datagrams:
    """Passes on what comes to `listener` to the session's port `port`. To be made in the event loop, and held.

    `clients`: those that have sent something lately, by their addresses.
    """

    def __init__(self, listener: socket.socket, port: int, ways: Ways) -> None:
        self._listener, self._port, self._ways = listener, port, ways
        self.clients: dict[object, _Sender] = {}  # the one that has sent last is the last
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)  # noqa: FBT003
        self._loop.add_reader(listener, self._take)
        self._loop.call_later(IDLE_S, self._sweep)

    def close(self) -> None:
        """Pass on nothing more. The listener stays open."""
        self._loop.remove_reader(self._listener)
        for client in self.clients.values():
            client.close()

    def _take(self) -> None:
        with contextlib.suppress(OSError):  # there are no more
            for _ in range(_AT_ONCE):
                data, address = self._listener.recvfrom(_PIECE)
                client = self.clients.pop(address, None)
                if client is None and len(self.clients) >= _MOST:
                    self.clients.pop(next(iter(self.clients))).close()
                self.clients[address] = client = client or _Sender(self._port, self._ways, partial(self._say, address))
                client.pass_on(data)

    def _say(self, address: tuple[object, ...], data: bytes) -> None:
        with contextlib.suppress(OSError):  # as on any network, a datagram may be lost
            self._listener.sendto(data, address)

    def _sweep(self) -> None:
        before = self._loop.time() - IDLE_S
        for address, client in list(self.clients.items()):
            if client.active_at < before:
                self.clients.pop(address).close()
        self._loop.call_later(IDLE_S, self._sweep)


class _Sender:
    """`active_at`: the loop's time when the last datagram came, of either side.

    The socket is not connected: who listens on all addresses answers a local address from that itself (ip(7)).
    """

    def __init__(self, port: int, ways: Ways, answer: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._port, self._answer = port, answer
        self._ways, self._count = itertools.cycle(ways), len(ways)
        self._socket: socket.socket | None = None
        self._address = ""
        self._last, self._left = b"", 0
        self.active_at = 0.0

    def pass_on(self, data: bytes) -> None:
        """Where nobody listens, the kernel says so a moment later; then the datagram goes to the next address."""
        self.active_at = self._loop.time()
        self._last, self._left = data, self._count
        if self._socket is None:
            self._go_on()
        else:
            self._send(self._socket)

    def close(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _go_on(self) -> None:
        self.close()
        while self._left and self._socket is None:
            self._left -= 1
            address, own = next(self._ways)
            is_ipv6 = ":" in address
            one = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
            try:
                one.setblocking(False)  # noqa: FBT003
                one.setsockopt(*_TELL_REFUSED[is_ipv6], 1)
                one.bind((own, 0))
            except OSError:  # such as a machine without IPv6
                one.close()
                continue
            self._socket, self._address = one, address
            self._loop.add_reader(one, self._hear)
            self._send(one)

    def _send(self, one: socket.socket) -> None:
        try:
            one.sendto(self._last, (self._address, self._port))
        except ConnectionRefusedError:  # the one before was
            self._go_on()
        except OSError:  # there is no room: it is lost
            return

    def _hear(self) -> None:
        try:
            for _ in range(_AT_ONCE):
                if self._socket is not None:
                    data, sender = self._socket.recvfrom(_PIECE)
                    self.active_at = self._loop.time()
                    if sender[1] == self._port:
                        self._answer(data)
        except ConnectionRefusedError:
            self._go_on()
        except OSError:  # there are no more
            self._forget_errors()

    def _forget_errors(self) -> None:
        """Such as that a datagram was too large: as long as one waits to be read, the socket counts as readable."""
        with contextlib.suppress(OSError):  # there are no more
            while self._socket is not None:
                self._socket.recvmsg(0, 0, socket.MSG_ERRQUEUE)
