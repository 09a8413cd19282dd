"""What passes the program that leads datagrams into a session."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from waypoint.egress import datagrams
from waypoint.egress.datagrams import Datagrams

OWN = "127.0.0.1"
WAYS = (("127.0.0.5", OWN), ("127.0.0.6", OWN))


def bound(address: str, port: int = 0) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setblocking(False)  # noqa: FBT003
    one.bind((address, port))
    return one


@contextlib.asynccontextmanager
async def led_to(address: str) -> AsyncIterator[tuple[socket.socket, socket.socket, Datagrams]]:
    """Who listens at `address`, who listens on the machine, and what passes on between them."""
    with contextlib.ExitStack() as opened:
        inner, outer = opened.enter_context(bound(address)), opened.enter_context(bound(OWN))
        yield inner, outer, opened.enter_context(contextlib.closing(Datagrams(outer, inner.getsockname()[1], WAYS)))


async def heard(one: socket.socket) -> tuple[bytes, tuple[str, int]]:
    async with asyncio.timeout(5):
        return await asyncio.get_running_loop().sock_recvfrom(one, 1 << 16)


@pytest.mark.parametrize("address", ["127.0.0.5", "127.0.0.6", ""])
def test_it_goes_where_somebody_listens_and_each_client_gets_its_own_answer(address: str) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with led_to(address) as (inner, outer, _):
            with bound(OWN) as one, bound(OWN) as other:
                for turn in (b"1", b"2"):
                    for client, word in ((one, b"one"), (other, b"other")):
                        await loop.sock_sendto(client, word + turn, outer.getsockname())
                    for _ in range(2):
                        data, sender = await heard(inner)
                        await loop.sock_sendto(inner, b"to " + data, sender)
                    assert await heard(one) == (b"to one" + turn, outer.getsockname())
                    assert await heard(other) == (b"to other" + turn, outer.getsockname())

    asyncio.run(run())


def test_the_one_that_was_silent_for_the_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagrams, "_MOST", 2)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with led_to("127.0.0.5") as (inner, outer, _):
            with contextlib.ExitStack() as opened:
                clients = [opened.enter_context(bound(OWN)) for _ in range(3)]
                seen = []
                for client in (*clients, clients[2], clients[0]):
                    await loop.sock_sendto(client, b"x", outer.getsockname())
                    seen.append((await heard(inner))[1])
                assert seen[3] == seen[2], "it has kept its own"
                assert seen[4] != seen[0], "it had lost its own, and has another"

    asyncio.run(run())


def test_a_client_that_is_silent_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagrams, "IDLE_S", 0.05)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with led_to("127.0.0.5") as (inner, outer, passed):
            with bound(OWN) as client:
                await loop.sock_sendto(client, b"x", outer.getsockname())
                await heard(inner)
                async with asyncio.timeout(5):
                    while passed.clients:
                        await asyncio.sleep(0)

    asyncio.run(run())


def test_a_datagram_that_is_too_large_keeps_nobody_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of IPv6 may be larger than any of IPv4: that it was not sent waits to be read at the socket."""
    heard_at: list[float] = []
    hear = datagrams._Sender._hear

    def counted(sender: datagrams._Sender) -> None:
        heard_at.append(0.0)
        hear(sender)

    monkeypatch.setattr(datagrams._Sender, "_hear", counted)

    async def run() -> None:
        with bound("127.0.0.5") as inner:
            sender = datagrams._Sender(inner.getsockname()[1], WAYS[:1], lambda _data: None)
            with contextlib.closing(sender):
                sender.pass_on(bytes(65_520))
                for _ in range(100):
                    await asyncio.sleep(0)
                sender.pass_on(b"x")
                assert (await heard(inner))[0] == b"x"

    asyncio.run(run())
    assert len(heard_at) < 10
