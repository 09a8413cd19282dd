"""A real HTTP server on a real socket, in a thread of the test, with the fake service of memory_service.py."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.daemon.memory_service import MEMORY_ROUTES, MemoryService
from tests.daemon.raw_client import RawClient
from tests.waiting import DEADLINE_S, PATIENCE_S
from waypoint.daemon.http.conversation import Served
from waypoint.daemon.http.messages import Limits
from waypoint.daemon.http.route import Routes
from waypoint.daemon.http.server import Server


class RunningServer:
    """A running server. The test's thread may read `service`, but changes it only through `on_loop`."""

    def __init__(self, path: str, limits: Limits, routes: Routes) -> None:
        self.path = path
        self._limits = limits
        self._routes = routes
        self._up: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="server")
        self._thread.start()
        self._up.result(DEADLINE_S)

    def connect(self, timeout_s: float = DEADLINE_S) -> RawClient:
        return RawClient(self.path, timeout_s)

    def on_loop(self, call: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed if a client has stopped the server
            self.on_loop(self.stopping.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.service = MemoryService()
        self.stopping = asyncio.Event()
        self.service.stop_daemon = self.stopping.set
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen(512)
            server = Server(listener, Served(lambda: self.service, self._routes), self._limits)
            server.start()
            self._up.set_result(None)
            await self.stopping.wait()
            await server.stop(5.0)
        assert len(asyncio.all_tasks()) == 1, "a client's task outlived the server"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Return a function that starts a server; `routes` are added to the usual routes, other arguments set limits."""
    running: list[RunningServer] = []

    def start(routes: Routes = (), **limits: float) -> RunningServer:
        path = str(tmp_path / f"{len(running)}.sock")
        running.append(RunningServer(path, Limits(**limits), MEMORY_ROUTES + routes))  # type: ignore[arg-type]
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
