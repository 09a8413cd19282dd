"""StreamOutlet and StreamInlet over a socket pair: order, back-pressure and cancellation."""

import asyncio
import functools
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from waypoint.daemon.http.connection import Connection
from waypoint.daemon.http.stream import MAX_PAYLOAD_BYTES, StreamInlet, StreamOutlet
from waypoint.model.streams import Frame


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Turn a coroutine into a test that runs it in a new event loop."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type]

    return run


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Connection, socket.socket]]:
    """Yield a connection and the client's socket, which does not block."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(0)
    connection = Connection(ours)
    with theirs:
        yield connection, theirs
    connection.close()


async def read_frame(theirs: socket.socket) -> tuple[bytes, bytes]:
    kind, length = struct.unpack(">cI", await read(theirs, 5))
    return kind, await read(theirs, length)


async def read(theirs: socket.socket, size: int) -> bytes:
    data = b""
    async with asyncio.timeout(60):
        while len(data) < size:
            data += await asyncio.get_running_loop().sock_recv(theirs, size - len(data))
    return data


async def settle() -> None:
    """Let every task run until it waits for the socket."""
    for _ in range(10):
        await asyncio.sleep(0)


@in_loop
async def test_output_waits_for_the_client() -> None:
    async with pair() as (connection, theirs):
        outlet = StreamOutlet(connection)
        sending = asyncio.create_task(outlet.output(b"x" * MAX_PAYLOAD_BYTES))
        await settle()
        assert not sending.done()
        assert await read_frame(theirs) == (b"o", b"x" * MAX_PAYLOAD_BYTES)
        await sending


@in_loop
async def test_large_output_is_split_and_empty_output_sends_nothing() -> None:
    async with pair() as (connection, theirs):
        outlet = StreamOutlet(connection)
        await outlet.output(b"")
        data = bytes(range(256)) * 4096 * 2 + b"end"
        sending = asyncio.create_task(outlet.output(memoryview(data)))
        frames = [await read_frame(theirs) for _ in range(3)]
        await sending
        assert [len(payload) for _, payload in frames] == [MAX_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES, 3]
        assert b"".join(payload for _, payload in frames) == data


@in_loop
async def test_frames_of_several_tasks_are_not_mixed() -> None:
    async with pair() as (connection, theirs):
        outlet = StreamOutlet(connection)
        payloads = [bytes([65 + number]) * 300_000 for number in range(8)]
        sending = [asyncio.create_task(outlet.output(payload)) for payload in payloads]
        assert [await read_frame(theirs) for _ in payloads] == [(b"o", payload) for payload in payloads]
        await asyncio.gather(*sending)


@in_loop
async def test_a_partly_sent_frame_is_completed_although_its_sender_is_cancelled() -> None:
    async with pair() as (connection, theirs):
        outlet = StreamOutlet(connection)
        data = bytearray(b"x" * MAX_PAYLOAD_BYTES)
        begun = asyncio.create_task(outlet.output(memoryview(data)))
        waiting = asyncio.create_task(outlet.output(b"never begun"))
        await settle()
        begun.cancel()
        waiting.cancel()
        await asyncio.gather(begun, waiting, return_exceptions=True)
        data[:] = bytes(len(data))  # the caller reuses its buffer
        last = asyncio.create_task(outlet.end({"exit": 0}))
        assert await read_frame(theirs) == (b"o", b"x" * MAX_PAYLOAD_BYTES)
        assert await read_frame(theirs) == (b"x", b'{"exit":0}')
        await last


@in_loop
async def test_sending_the_rest_of_a_frame_can_be_cancelled_too() -> None:
    async with pair() as (connection, theirs):
        outlet = StreamOutlet(connection)
        for payload in (b"x" * MAX_PAYLOAD_BYTES, b"y", b"z"):
            sending = asyncio.create_task(outlet.output(payload))
            await settle()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        last = asyncio.create_task(outlet.output(b"last"))
        assert await read_frame(theirs) == (b"o", b"x" * MAX_PAYLOAD_BYTES)
        assert await read_frame(theirs) == (b"o", b"last")
        await last


@in_loop
async def test_sending_to_a_client_that_has_disconnected_raises_connection_error() -> None:
    async with pair() as (connection, theirs):
        outlet = StreamOutlet(connection)
        sending = asyncio.create_task(outlet.output(b"x" * MAX_PAYLOAD_BYTES))
        await settle()
        theirs.close()
        with pytest.raises(ConnectionError):
            await sending
        with pytest.raises(ConnectionError):
            await outlet.note({})
        assert outlet.broken


@in_loop
async def test_a_client_that_reads_fast_does_not_starve_other_tasks() -> None:
    async with pair() as (connection, theirs):
        outlet = StreamOutlet(connection)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        for _ in range(256):
            await outlet.output(b"x" * 65536)
            theirs.recv(1 << 20)
        counting.cancel()
        assert turns > 3


@in_loop
async def test_a_cancelled_receive_loses_no_frame() -> None:
    async with pair() as (connection, theirs):
        inlet = StreamInlet(connection, b"")
        for number in range(200):
            payload = b"%d" % number
            receiving = asyncio.create_task(inlet.receive())
            await asyncio.sleep(0)
            theirs.send(struct.pack(">cI", b"i", len(payload)) + payload)
            for _ in range(number % 4):  # cancel at different points
                await asyncio.sleep(0)
            receiving.cancel()
            (got,) = await asyncio.gather(receiving, return_exceptions=True)
            if not isinstance(got, Frame):
                got = await inlet.receive()
            assert got == Frame("i", payload)


@in_loop
async def test_every_receive_after_the_end_of_the_client_returns_none() -> None:
    async with pair() as (connection, theirs):
        inlet = StreamInlet(connection, struct.pack(">cI", b"k", 4) + b"TERM" + b"i\0")
        theirs.close()
        assert await inlet.receive() == Frame("k", b"TERM")
        assert await inlet.receive() is None
        assert await inlet.receive() is None
        assert inlet.complaint == ""
