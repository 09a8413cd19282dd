"""The daemon's shell with a Service that lives in memory: requests, frames, how long it is away if it is killed."""

import asyncio
import contextlib
import mmap
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.frame import Figure, Sizes, at_least, at_most
from tests.daemon.kept_home import KeptHome, kept_home, kill
from tests.places import make_temp_root
from waypoint.daemon.connection import Connection
from waypoint.daemon.siblings import QUICK_DEATH_S
from waypoint.daemon.stream import StreamOutlet

REQUEST = b"GET /v1/status HTTP/1.1\r\nHost: waypoint\r\n\r\n"
REQUESTS = 200  # of one run; the figure is of one of them
BLOCK_BYTES = 256 << 10
MB = 1_000_000


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-daemon-", dir=make_temp_root()) as folder,
        kept_home(Path(folder) / "kept") as home,
        _echo() as echo,
        socket.socket(socket.AF_UNIX) as client,
    ):
        home.start()
        client.connect(home.socket)
        total = (64 if sizes.quick else 2048) * MB
        yield [
            Figure(
                name="a small request on an open connection",
                unit="ms",
                measure=lambda: _ms_of_requests(client),
                floor=lambda: _ms_of_requests(echo),
                floor_name="a socket echo",
                aim=at_most(0.5, "ms"),
            ),
            Figure(
                name="frames of 256 KiB to a client that reads",
                unit="MB/s",
                measure=lambda: asyncio.run(_rate_of_frames(total)),
                floor=lambda: _rate_of_sendmsg(total),
                floor_name="sendmsg alone",
                aim=at_least(1000, "MB/s"),
            ),
            Figure(
                name="SIGKILL of the daemon until the next answers",
                unit="ms",
                measure=lambda: _ms_until_replaced(home),
                before=lambda: _outlive_quick_death(home),
            ),
        ]


@contextlib.contextmanager
def _echo() -> Iterator[socket.socket]:
    """A socket whose other end sends back whatever comes."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        while data := theirs.recv(65536):
            theirs.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    with ours, theirs:
        yield ours
        ours.shutdown(socket.SHUT_WR)
        thread.join()


def _ms_of_requests(client: socket.socket) -> float:
    begin = time.perf_counter()
    for _ in range(REQUESTS):
        client.sendall(REQUEST)
        client.recv(65536)
    return (time.perf_counter() - begin) * 1000 / REQUESTS


@contextlib.contextmanager
def _reader() -> Iterator[socket.socket]:
    """A socket whose other end is read as fast as can be."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        cat = subprocess.Popen(["cat"], stdin=theirs, stdout=subprocess.DEVNULL)
        theirs.close()
        with cat:
            yield ours
            ours.close()


async def _rate_of_frames(total: int) -> float:
    with _reader() as sock, mmap.mmap(-1, 1 << 20) as ring, memoryview(ring) as view, view[:BLOCK_BYTES] as block:
        outlet = StreamOutlet(Connection(sock))
        begin = time.perf_counter()
        for _ in range(total // BLOCK_BYTES):
            await outlet.output(block)
        return total / MB / (time.perf_counter() - begin)


def _rate_of_sendmsg(total: int) -> float:
    with _reader() as sock:
        block = memoryview(bytes(BLOCK_BYTES))
        begin = time.perf_counter()
        for _ in range(total // BLOCK_BYTES):
            sock.sendall(block)
        return total / MB / (time.perf_counter() - begin)


def _outlive_quick_death(home: KeptHome) -> None:
    """A daemon that dies younger is suspected to die again, and its successor has to wait."""
    home.daemon_pid()
    select.poll().poll(QUICK_DEATH_S * 1000)


def _ms_until_replaced(home: KeptHome) -> float:
    begin = time.perf_counter()
    kill(home.daemon_pid())
    home.daemon_pid()
    return (time.perf_counter() - begin) * 1000
