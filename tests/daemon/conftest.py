"""A real server on a real socket, in a thread of the test's process, with a Service that lives in memory."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.daemon.memory_service import MemoryService
from tests.daemon.raw_client import RawClient
from waypoint.daemon.http import Limits
from waypoint.daemon.server import Server


class RunningServer:
    """`service` may be looked at from the test's thread; change it only through `on_loop`."""

    def __init__(self, path: str, limits: Limits) -> None:
        self.path = path
        self._limits = limits
        self._up: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="server")
        self._thread.start()
        self._up.result(10)

    def connect(self, timeout_s: float = 20.0) -> RawClient:
        return RawClient(self.path, timeout_s)

    def on_loop(self, call: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: a client has stopped it
            self.on_loop(self.stopping.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.service = MemoryService()
        self.stopping = asyncio.Event()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen(512)
            server = Server(listener, lambda: self.service, self.stopping.set, self._limits)
            server.start()
            self._up.set_result(None)
            await self.stopping.wait()
            await server.stop(5.0)
        assert len(asyncio.all_tasks()) == 1, "a client's task outlived the server"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers; each argument replaces one of the limits."""
    running: list[RunningServer] = []

    def start(**limits: float) -> RunningServer:
        running.append(RunningServer(str(tmp_path / f"{len(running)}.sock"), Limits(**limits)))  # type: ignore[arg-type]
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def server(serve: Callable[..., RunningServer]) -> RunningServer:
    return serve()


@pytest.fixture
def client(server: RunningServer) -> Iterator[RawClient]:
    with server.connect() as client:
        yield client
