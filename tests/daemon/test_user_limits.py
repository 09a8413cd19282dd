"""Limits for each user of the server (connections, requests, turns): one user cannot block root or other users."""

import asyncio
import contextlib
import ctypes
import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.daemon.conftest import RunningServer
from tests.daemon.memory_service import MemoryService
from tests.daemon.raw_client import RawClient
from waypoint.daemon.http.messages import Limits
from waypoint.daemon.http.route import Route
from waypoint.daemon.http.shares import Share
from waypoint.linux.calls import libc

pytestmark = pytest.mark.privileged

ANN, BOB = 12345, 54321
_SETRESUID = {"x86_64": 117, "aarch64": 147}[libc.MACHINE]
_PR_GET_SECUREBITS, _PR_SET_SECUREBITS, _NO_SETUID_FIXUP = 27, 28, 1 << 2


@contextlib.contextmanager
def acting(uid: int) -> Iterator[None]:
    """Make this thread connect as `uid`. It keeps root's rights; the server's thread is not changed."""
    system = ctypes.CDLL(None, use_errno=True)

    def become(effective: int) -> None:
        assert system.syscall(_SETRESUID, -1, effective, -1) == 0, ctypes.get_errno()

    bits = libc.call("prctl", _PR_GET_SECUREBITS, 0, 0, 0, 0)
    libc.call("prctl", _PR_SET_SECUREBITS, bits | _NO_SETUID_FIXUP, 0, 0, 0)
    try:
        become(uid)
        try:
            yield
        finally:
            become(0)
    finally:
        libc.call("prctl", _PR_SET_SECUREBITS, bits, 0, 0, 0)


def connect(server: RunningServer, uid: int, stack: ExitStack) -> RawClient:
    with acting(uid):
        return stack.enter_context(server.connect())


def status_for(server: RunningServer, uid: int) -> int:
    with ExitStack() as stack:
        return connect(server, uid, stack).ask("GET", "/v1/status").status


def refusal_for(server: RunningServer, uid: int) -> int:
    """Return the status of the answer to a client that has sent no request."""
    with ExitStack() as stack:
        return connect(server, uid, stack).answer().status


def attach(server: RunningServer, uid: int, stack: ExitStack) -> None:
    assert connect(server, uid, stack).upgrade("/v1/sessions/waits/attach").status == 101


@pytest.fixture
def waits(serve: Callable[..., RunningServer]) -> Iterator[Callable[..., RunningServer]]:
    """Return a function that starts a server with the session `waits`, whose streams last until the end of the test."""
    servers = []

    def start(**limits: int) -> RunningServer:
        server = serve(**limits)
        with server.connect() as client:
            client.ask("POST", "/v1/sessions", {"branch": "waits"})
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.on_loop(server.service.released.set)


def test_a_users_busy_connections_take_only_the_users_share(waits: Callable[..., RunningServer]) -> None:
    server = waits(connections=8, connections_of_user=2)
    with ExitStack() as stack:
        attach(server, ANN, stack)
        attach(server, ANN, stack)
        assert refusal_for(server, ANN) == 503
        assert (status_for(server, BOB), status_for(server, 0)) == (200, 200)
    with ExitStack() as stack:
        connect(server, BOB, stack).send(b"GET /v1/st")
        connect(server, BOB, stack).send(b"POST /v1/sessions HTTP/1.1\r\nHost: w\r\nContent-Length: 9\r\n\r\n{")
        assert status_for(server, 0) == 200
        assert refusal_for(server, BOB) == 503


def test_all_users_together_leave_connections_for_root(waits: Callable[..., RunningServer]) -> None:
    server = waits(connections=3, connections_of_user=1)
    with ExitStack() as stack:
        for uid in (ANN, BOB):
            attach(server, uid, stack)
        assert refusal_for(server, ANN + 1) == 503
        assert status_for(server, 0) == 200


def test_a_new_connection_closes_an_idle_one_of_the_same_user(waits: Callable[..., RunningServer]) -> None:
    server = waits(connections=8, connections_of_user=2)
    with ExitStack() as stack:
        roots, bobs = connect(server, 0, stack), connect(server, BOB, stack)
        anns = [connect(server, ANN, stack) for _ in range(20)]
        assert anns[-1].ask("GET", "/v1/status").status == 200
        assert anns[0].ended()
        assert [client.ask("GET", "/v1/status").status for client in (roots, bobs)] == [200, 200]


def test_a_limited_number_of_requests_of_a_user_is_served_at_a_time(waits: Callable[..., RunningServer]) -> None:
    server = waits(requests_of_user=1)
    body = b'{"branch": "later"}'
    with ExitStack() as stack:
        attach(server, ANN, stack)  # a stream does not count
        first, second = connect(server, ANN, stack), connect(server, ANN, stack)
        head = f"POST /v1/sessions HTTP/1.1\r\nHost: w\r\nContent-Length: {len(body)}\r\n\r\n"
        first.send(head.encode() + body[:5])
        assert status_for(server, 0) == 200
        second.send(b"GET /v1/status HTTP/1.1\r\nHost: w\r\n\r\n")
        assert (status_for(server, 0), status_for(server, BOB)) == (200, 200)
        assert not select.select([second.sock], [], [], 0)[0]
        first.send(body[5:])
        assert (first.answer().status, second.answer().status) == (201, 200)


def test_many_waiting_requests_of_a_client_do_not_delay_another_client(serve: Callable[..., RunningServer]) -> None:
    served: list[int] = []
    others: list[RawClient] = []

    async def note(memory: MemoryService, uid: int) -> None:
        served.append(uid)

    async def flood(memory: MemoryService) -> None:
        await note(memory, ANN)
        if len(served) == 1:  # another client sends a request while the loop serves this one
            others[0].send(b"GET /v1/other HTTP/1.1\r\nHost: w\r\n\r\n")

    async def other(memory: MemoryService) -> None:
        await note(memory, 0)

    server = serve((Route("GET", "/v1/flood", flood, "Many"), Route("GET", "/v1/other", other, "One")))
    for uid in (ANN, 0):
        served.clear()
        with ExitStack() as stack:
            others[:] = [connect(server, 0, stack)]
            assert others[0].ask("GET", "/v1/status").status == 200
            client = connect(server, uid, stack)
            client.send(b"GET /v1/flood HTTP/1.1\r\nHost: w\r\n\r\n" * 200)
            assert all(client.answer().status == 200 for _ in range(200))
            assert others[0].answer().status == 200
        assert served.index(0) < 20


@pytest.mark.parametrize("has_waited", [False, True], ids=["one after the other", "each waited for its client"])
def test_the_connections_of_a_user_share_one_turn_in_each_round_of_the_loop(*, has_waited: bool) -> None:
    async def most_in_a_round(share: Share) -> int:
        rounds = [0]

        async def take() -> None:
            for _ in range(10):
                await share.turn(has_waited=has_waited)
                rounds[-1] += 1

        tasks = [asyncio.create_task(take()) for _ in range(20)]
        tasks[7].cancel()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            rounds.append(0)
        assert sum(rounds) == 190
        return max(rounds)

    async def both() -> tuple[int, int]:
        shares = [Share(Limits(), limited=limited) for limited in (True, False)]
        return await most_in_a_round(shares[0]), await most_in_a_round(shares[1])

    limited, unlimited = asyncio.run(both())
    assert limited <= 2
    assert unlimited == (190 if has_waited else 19)
