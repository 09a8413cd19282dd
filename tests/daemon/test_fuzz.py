"""Requests with random mistakes: each complete request gets a well-formed answer, and none causes a bug."""

import json
import socket

import pytest
from hypothesis import given

from tests import fuzzing
from tests.daemon import memory_service
from tests.daemon.conftest import RunningServer
from tests.daemon.memory_service import MEMORY_ROUTES
from tests.daemon.raw_client import Answer, RawClient
from tests.fuzzing import FuzzRequest

pytestmark = pytest.mark.soak(part="floods")

ROUTES = tuple(
    route
    for route in MEMORY_ROUTES
    if route.function.__module__ == memory_service.__name__ and not route.path.endswith("daemon/stop")
)
STATUSES = {101, 200, 201, 400, 403, 404, 405, 408, 409, 413, 422, 426, 431, 501, 505}
PARTS = {"code", "exit", "tried", "on", "said", "next"}


def answered(client: RawClient, asked: FuzzRequest) -> Answer | None:
    """Return the first answer to the request, or None if the connection ends without an answer."""
    client.send(asked.data)
    client.sock.shutdown(socket.SHUT_WR)
    try:
        found = client.head()
        while found.status == 100:
            found = client.head()
        if found.headers.get("transfer-encoding") == "chunked":
            return found._replace(body=b"".join(iter(client.chunk, b"")))
        return found._replace(body=client.take(int(found.headers.get("content-length", 0))))
    except (EOFError, ConnectionError):
        return None


@fuzzing.bounded(400)
@given(asked=fuzzing.requests(ROUTES, ["main", "nosuch", "a%2Fb"]))
def test_every_request_gets_a_well_formed_answer(server: RunningServer, asked: FuzzRequest) -> None:
    with server.connect() as client:
        found = answered(client, asked)
    assert found is not None or not asked.is_whole, asked.shown
    if found is not None:
        assert found.status in STATUSES, (found, asked.shown)
        if found.status >= 400:
            error = json.loads(found.body)["error"]
            assert set(error) == PARTS
            assert error["code"] != "bug", (error, asked.shown)
    with server.connect() as client:
        assert client.ask("GET", "/v1/status").status == 200
