"""What passes the program that leads into a session: every byte, also when one side sends no more."""

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from waypoint.egress import relay
from waypoint.linux.tasks import kin, namespaces, procfs

BUFFER = 1 << 14  # of the kernel for what goes to the client, on each side
REST = 1 << 16  # what waits in the relay then, at most
MANY = 20

Serve = Callable[[socket.socket], Awaitable[None]]


@pytest.fixture(autouse=True)
def on_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_TRIED", (("127.0.0.1", "127.0.0.1"),))


@contextlib.asynccontextmanager
async def led_into(serve: Serve, clients: int = 1) -> AsyncIterator[list[socket.socket]]:
    """Clients, each connected by a relay to one for which `serve` runs."""
    loop, address = asyncio.get_running_loop(), ("127.0.0.1", 0)
    with contextlib.ExitStack() as opened:
        inner, outer = (opened.enter_context(socket.create_server(address)) for _ in range(2))
        inner.setblocking(False)  # noqa: FBT003
        outer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        (server,) = await relay.take_all([(outer, inner.getsockname()[1])])
        async with server, asyncio.TaskGroup() as serving:
            connected = []
            for _ in range(clients):
                one = opened.enter_context(socket.socket())
                one.setblocking(False)  # noqa: FBT003
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
                await loop.sock_connect(one, outer.getsockname())
                connected.append(one)
                taken = opened.enter_context((await loop.sock_accept(inner))[0])
                serving.create_task(serve(taken))
            yield connected


async def read_all(one: socket.socket) -> bytes:
    """What comes until the end, more slowly than the relay takes it."""
    loop, got = asyncio.get_running_loop(), bytearray()
    while data := await loop.sock_recv(one, 1 << 12):
        got += data
    return bytes(got)


def test_who_has_sent_all_still_gets_the_answer() -> None:
    async def run() -> list[bytes]:
        loop, asked, answer = asyncio.get_running_loop(), asyncio.Semaphore(0), asyncio.Event()

        async def serve(one: socket.socket) -> None:
            assert await read_all(one) == b"question"
            asked.release()
            await answer.wait()
            await loop.sock_sendall(one, bytes(1000))
            one.close()

        async with led_into(serve, MANY) as clients:
            for one in clients:
                await loop.sock_sendall(one, b"question")
                one.shutdown(socket.SHUT_WR)
            for _ in clients:
                await asked.acquire()
            gc.collect()  # what nothing holds any more goes
            answer.set()
            return await asyncio.gather(*map(read_all, clients))

    assert asyncio.run(run()) == [bytes(1000)] * MANY


@pytest.mark.parametrize("size", range(REST, 3 * REST, REST // 4))
def test_who_reads_slowly_gets_it_all(size: int) -> None:
    async def run() -> int:
        loop = asyncio.get_running_loop()

        async def serve(one: socket.socket) -> None:
            await loop.sock_sendall(one, bytes(size))
            one.close()

        async with led_into(serve) as (client,):
            client.shutdown(socket.SHUT_WR)
            return len(await read_all(client))

    assert asyncio.run(run()) == size


def test_it_enters_no_network_of_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "setns", lambda *_: pytest.fail("it enters"))
    pid = os.getpid()
    with pytest.raises(OSError, match="in no network of the session's"):
        relay.main([f"/{kin.FOLDER}/one", str(pid), str(procfs.start_ticks(pid)), "0"])
