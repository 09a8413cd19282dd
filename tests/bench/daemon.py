"""Speed of requests and frames of a daemon with a service in memory, and of the replacement of a killed daemon."""

import asyncio
import contextlib
import mmap
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.frame import Figure, Sizes, at_least, at_most, ms_of_command
from tests.bench.start import BARE_PYTHON, FLOOR_NAME
from tests.daemon.supervised_home import supervised_home
from tests.homes import open_home
from tests.places import make_temp_root
from waypoint.client.sdk import Client
from waypoint.daemon.http.connection import Connection
from waypoint.daemon.http.stream import StreamOutlet
from waypoint.daemon.siblings import QUICK_DEATH_S
from waypoint.linux.tasks import lock_holder

REQUEST = b"GET /v1/status HTTP/1.1\r\nHost: waypoint\r\n\r\n"
REQUESTS = 200  # how many requests one run sends; the figure is the time of one request
BLOCK_BYTES = 256 << 10
MB = 1_000_000


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-daemon-", dir=make_temp_root()) as folder,
        supervised_home(Path(folder) / "kept") as home,
        open_home("bench") as real,
        _echo() as echo,
        socket.socket(socket.AF_UNIX) as client,
    ):
        home.start()
        client.connect(home.socket)
        client_of_real = Client(real.path)
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
                measure=lambda: _ms_until_replaced(client_of_real),
                floor=lambda: ms_of_command(BARE_PYTHON),
                floor_name=FLOOR_NAME,
                aim=at_most(500, "ms"),
                before=lambda: _outlive_quick_death(client_of_real),
            ),
            Figure(
                name="the same, killed with the supervisor",
                unit="ms",
                measure=lambda: _ms_until_replaced(
                    client_of_real, lock_holder.signed_by(str(real.runtime / "supervisor.lock"))
                ),
                floor=lambda: ms_of_command(BARE_PYTHON),
                floor_name=FLOOR_NAME,
                aim=at_most(500, "ms"),
                before=lambda: _outlive_quick_death(client_of_real),
            ),
        ]


@contextlib.contextmanager
def _echo() -> Iterator[socket.socket]:
    """Yield a socket whose other end echoes."""
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
    """Yield a socket whose other end is read as fast as possible."""
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


def _outlive_quick_death(client: Client) -> None:
    """Wait until the daemon is old enough: the successor of a daemon that dies young starts with a delay."""
    client.status()
    select.poll().poll(QUICK_DEATH_S * 1000)


def _ms_until_replaced(client: Client, *others: int) -> float:
    """Kill the daemon and return the time until its successor answers. `others`: pids to kill just before it."""
    killed = client.status().pid
    begin = time.perf_counter()
    for pid in (*others, killed):
        os.kill(pid, signal.SIGKILL)
    found = client.status()
    taken = 1000 * (time.perf_counter() - begin)
    if found.pid == killed:
        raise RuntimeError(f"the killed daemon {killed} answered")
    return taken
