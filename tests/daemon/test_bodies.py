"""Bodies in pieces: uploads, downloads and long lists, their back-pressure and their failures."""

import asyncio
import contextlib
import itertools
import json
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator

import pytest

from tests.daemon.conftest import RunningServer
from tests.daemon.memory_service import MemoryService
from tests.daemon.raw_client import RawClient
from tests.waiting import PATIENCE_S
from waypoint.branch.graph import in_pieces
from waypoint.daemon.http.route import Route, read_signature
from waypoint.linux.tasks import pauses
from waypoint.model.errors import Failed, UnknownName
from waypoint.model.requests import OperationsQuery
from waypoint.records.reading import PIECE
from waypoint.service.shapes import Download, Pages, Upload

LIMIT_BYTES = 1 << 22
BLOCK = bytes(range(256)) * 256


SECRET = "a secret value"


async def upload(
    memory: MemoryService, one: str, other: str, query: OperationsQuery, body: Upload
) -> dict[str, object]:
    """Read an upload. If `one` is `lazy`, wait for `released` first; if it is `early`, refuse without reading."""
    size = 0
    memory.requests.append("begun")
    if one == "early":
        raise UnknownName("store", one, "there is no such thing", "store something else")
    if one == "lazy":
        await memory.released.wait()
    try:
        async for piece in body:
            size += len(piece)
            memory.requests.append(size)
    except Exception as error:
        memory.requests.append(error)
        raise
    return {"one": one, "other": other, "limit": query.limit, "bytes": size}


async def download(memory: MemoryService, name: str) -> Download:
    return Download("application/octet-stream", _blocks(memory, name))


async def _blocks(memory: MemoryService, name: str) -> AsyncGenerator[bytes, None]:
    try:
        if name == "refused":
            raise UnknownName("fetch", name, "there is no such thing", "fetch something else")
        yield b"first"
        if name == "breaks":
            raise Failed("fetch", name, "the disk is full", "")
        if name == "surprises":
            raise KeyError(SECRET)
        if name == "waits":
            await asyncio.get_running_loop().create_future()
        while name == "floods":
            memory.requests.append(len(BLOCK))
            yield BLOCK
        yield b"last"
    finally:
        memory.ended_streams.append(name)


async def listed(memory: MemoryService, name: str) -> Pages[dict[str, object]]:
    return itertools.chain([[]], in_pieces(_rows(memory, name)))


def _rows(memory: MemoryService, name: str) -> Iterator[dict[str, object]]:
    if name == "refused":
        raise UnknownName("list", name, "there is no such thing", "list something else")
    for number in range({"none": 0, "one": 1, "piece": PIECE, "many": 1000, "breaks": 1000}[name]):
        if name == "breaks" and number == 500:
            raise Failed("list", name, "as asked", "")
        memory.requests.append(threading.current_thread().name)
        yield {"number": number, "text": "ä\n"}


ROUTES = (
    Route("POST", "/v1/trees/{one}/files/{other}", upload, "Upload", body_limit=LIMIT_BYTES),
    Route("GET", "/v1/downloads/{name}", download, "Download"),
    Route("GET", "/v1/lists/{name}", listed, "List", wrap="rows"),
)


@pytest.fixture
def server(serve: Callable[..., RunningServer]) -> RunningServer:
    return serve(routes=ROUTES)


def send_head(client: RawClient, target: str = "/v1/trees/a%2Fb/files/c?limit=7") -> None:
    client.send(f"POST {target} HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n".encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


# --- placeholders


def test_a_path_may_have_several_placeholders(client: RawClient) -> None:
    answer = client.ask("POST", "/v1/trees/a%2Fb/files/c?limit=7", b"12345")
    assert answer.json == {"one": "a/b", "other": "c", "limit": 7, "bytes": 5}


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/trees/a/files", 404),
        ("/v1/trees/a/file/c", 404),
        ("/v1/trees/a/files/c/d", 404),
        ("/v1/trees/a/files/%2e%2e", 400),
        ("/v1/trees/-a/files/c", 400),
        ("/v1/trees//files/c", 400),
        ("/v1/trees/a/files/c?colour=red", 400),
        ("/v1/trees/a/files/c?limit=0", 400),
    ],
)
def test_each_placeholder_is_checked(client: RawClient, target: str, status: int) -> None:
    assert client.ask("POST", target, b"").status == status


def test_a_placeholder_without_a_parameter_raises_a_type_error() -> None:
    with pytest.raises(TypeError, match="does not take colour"):
        read_signature(download, iter(["name", "colour"]))
    with pytest.raises(TypeError, match="nothing in a request is a <class 'str'> for 'name'"):
        read_signature(download, iter([]))


# --- uploads


def test_a_chunked_upload_is_read_in_pieces(server: RunningServer, client: RawClient) -> None:
    send_head(client)
    for _ in range(40):
        client.send(chunk(BLOCK))
    client.send(b"0\r\n\r\n")
    assert client.answer().json["bytes"] == 40 * len(BLOCK)
    assert len(server.service.requests) > 40
    assert client.ask("GET", "/v1/status").status == 200


@pytest.mark.soak(part="floods")
def test_an_upload_is_not_read_ahead_of_its_reader(server: RunningServer, client: RawClient) -> None:
    send_head(client, "/v1/trees/lazy/files/c")
    client.sock.settimeout(0.3)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < LIMIT_BYTES:
            sent += client.sock.send(chunk(BLOCK))
    assert 0 < sent < LIMIT_BYTES // 2  # no more than the socket's buffers hold


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"zz\r\n", 400),
        (b"-1\r\n", 400),
        (b"123456789012345678901\r\n", 400),
        (b"3\r\nabcd\r\n", 400),
        (b"x" * 20000, 431),
        (chunk(b"x" * LIMIT_BYTES) + chunk(b"y"), 413),
    ],
)
def test_a_malformed_upload_is_answered_and_the_connection_closed(
    server: RunningServer, data: bytes, status: int
) -> None:
    with server.connect() as client:
        send_head(client)
        sender = threading.Thread(target=lambda: client.send(data))
        sender.start()
        answer = client.answer()
        sender.join()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert answer.json["error"]["code"] == "usage"
        assert client.ended()
    assert isinstance(server.service.requests[-1], Exception)  # the handler gets an exception


def test_an_upload_with_a_too_large_content_length_is_refused_before_it_is_read(client: RawClient) -> None:
    client.send(b"POST /v1/trees/a/files/c HTTP/1.1\r\nHost: w\r\nContent-Length: %d\r\n\r\n" % (LIMIT_BYTES + 1))
    assert client.answer().status == 413
    assert client.ended()


def test_a_stalled_upload_is_refused(serve: Callable[..., RunningServer]) -> None:
    server = serve(routes=ROUTES, incomplete_s=0.3)
    with server.connect() as client:
        send_head(client)
        client.send(chunk(b"some") + b"5\r\nhal")
        assert client.answer().status == 408
        assert client.ended()


def test_the_handler_gets_an_exception_if_the_client_disconnects_during_an_upload(server: RunningServer) -> None:
    with server.connect() as client:
        send_head(client)
        client.send(chunk(b"some"))
    with server.connect() as other:
        while not any(isinstance(one, Exception) for one in server.service.requests):
            assert other.ask("GET", "/v1/status").status == 200


def test_an_upload_may_be_answered_before_it_is_read(client: RawClient) -> None:
    send_head(client, "/v1/trees/early/files/c")
    answer = client.answer()
    assert (answer.status, answer.headers["connection"]) == (404, "close")
    assert client.ended()


def test_garbage_after_a_chunked_upload_is_refused_as_the_next_request(client: RawClient) -> None:
    send_head(client)
    client.send(chunk(b"x") + b"0\r\n\r\nbehind it\r\n\r\n")
    assert client.answer().json["bytes"] == 1
    assert client.answer().status == 400
    assert client.ended()


def test_100_continue_is_sent_when_the_handler_begins_to_read(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(
            b"POST /v1/trees/lazy/files/c HTTP/1.1\r\nHost: w\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        )
        with server.connect() as other:
            while not server.service.requests:
                other.ask("GET", "/v1/status")
        client.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.take(1)
        client.sock.settimeout(60)
        server.on_loop(server.service.released.set)
        assert client.answer().status == 100
        client.send(b"abc")
        assert client.answer().json["bytes"] == 3


# --- downloads and lists


def test_a_download_arrives_in_chunks_with_its_content_type(server: RunningServer, client: RawClient) -> None:
    client.send(b"GET /v1/downloads/short HTTP/1.1\r\nHost: w\r\n\r\n")
    head = client.head()
    assert (head.status, head.headers["transfer-encoding"]) == (200, "chunked")
    assert head.headers["content-type"] == "application/octet-stream"
    assert [client.chunk(), client.chunk(), client.chunk()] == [b"first", b"last", b""]
    assert client.ask("GET", "/v1/status").status == 200
    assert server.service.ended_streams == ["short"]


def test_a_client_of_http_1_0_gets_no_chunks(client: RawClient) -> None:
    client.send(b"GET /v1/downloads/short HTTP/1.0\r\nHost: w\r\n\r\n")
    head = client.head()
    assert "transfer-encoding" not in head.headers
    assert client.take(9) == b"firstlast"
    assert client.ended()


def test_an_error_before_the_first_byte_is_an_ordinary_error_answer(client: RawClient) -> None:
    for target in ("/v1/downloads/refused", "/v1/lists/refused"):
        answer = client.ask("GET", target)
        assert (answer.status, answer.json["error"]["code"]) == (404, "unknown-name")
        assert "content-length" in answer.headers


@pytest.mark.parametrize("name", ["breaks", "surprises"])
def test_an_error_during_a_download_closes_the_connection(
    server: RunningServer, client: RawClient, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    client.send(f"GET /v1/downloads/{name} HTTP/1.1\r\nHost: w\r\n\r\n".encode())
    assert client.head().status == 200
    assert (client.chunk(), client.extension) == (b"first", b"")
    told = json.loads(client.chunk())["error"]
    assert (told["code"], client.extension) == ({"breaks": "failure", "surprises": "bug"}[name], b"error")
    with pytest.raises((EOFError, ConnectionResetError)):
        client.chunk()
    assert ("test_bodies.py" in caplog.text) == (name == "surprises")
    assert SECRET not in caplog.text
    with server.connect() as other:
        assert other.ask("GET", "/v1/status").status == 200


def test_a_list_that_fails_half_way_has_no_last_chunk(client: RawClient) -> None:
    client.send(b"GET /v1/lists/breaks HTTP/1.1\r\nHost: w\r\n\r\n")
    assert client.head().status == 200
    with pytest.raises((EOFError, ConnectionResetError)):
        list(iter(client.chunk, b""))


def test_a_download_is_not_produced_faster_than_the_client_reads(server: RunningServer, client: RawClient) -> None:
    client.send(b"GET /v1/downloads/floods HTTP/1.1\r\nHost: w\r\n\r\n")
    assert client.head().status == 200
    with server.connect() as other:
        for _ in range(50):
            other.ask("GET", "/v1/status")
    assert len(server.service.requests) < 32  # blocks of 64 KiB


@pytest.mark.parametrize("name", ["floods", "waits"])
def test_a_download_is_closed_when_its_client_disconnects(server: RunningServer, name: str) -> None:
    with server.connect() as client:
        client.send(f"GET /v1/downloads/{name} HTTP/1.1\r\nHost: w\r\n\r\n".encode())
        assert client.head().status == 200
        assert client.chunk() == b"first"
    with server.connect() as other:
        while server.service.ended_streams != [name]:
            other.ask("GET", "/v1/status")


def test_a_client_that_has_shut_down_its_sending_side_gets_the_whole_list(client: RawClient) -> None:
    client.send(b"GET /v1/lists/many HTTP/1.1\r\nHost: w\r\n\r\n")
    client.sock.shutdown(socket.SHUT_WR)
    assert len(client.answer().json["rows"]) == 1000
    assert client.ended()


def test_a_client_that_does_not_read_its_download_is_disconnected(serve: Callable[..., RunningServer]) -> None:
    server = serve(routes=ROUTES, answer_s=0.2)
    with server.connect() as deaf:
        deaf.send(b"GET /v1/downloads/floods HTTP/1.1\r\nHost: w\r\n\r\n")
        with server.connect() as other:
            while server.service.ended_streams != ["floods"]:
                other.ask("GET", "/v1/status")


@pytest.mark.parametrize(("name", "count"), [("none", 0), ("one", 1), ("piece", PIECE), ("many", 1000)])
def test_a_list_in_pieces_is_valid_json_made_in_one_thread(
    server: RunningServer, client: RawClient, monkeypatch: pytest.MonkeyPatch, name: str, count: int
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(pauses, "wait", lambda: calls.append(threading.current_thread().name))
    answer = client.ask("GET", f"/v1/lists/{name}")
    rows = [{"number": number, "text": "ä\n"} for number in range(count)]
    assert answer.body == json.dumps({"rows": rows}, separators=(",", ":"), ensure_ascii=False).encode()
    assert len(calls) == 1 + count // PIECE + bool(count % PIECE) + 1
    (thread,) = {*calls, *map(str, server.service.requests)}  # one thread makes all pieces
    assert thread.startswith("list")


def assert_opens(gate: threading.Event) -> None:
    assert gate.wait(PATIENCE_S)


def test_lists_that_wait_for_their_turn_delay_no_other_requests(
    server: RunningServer, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(pauses, "wait", lambda: assert_opens(gate))
    waiting = [server.connect() for _ in range(8)]  # more than the number of threads for lists
    for one in waiting:
        one.send(b"GET /v1/lists/many HTTP/1.1\r\nHost: w\r\n\r\n")
    assert client.ask("GET", "/v1/status").status == 200
    assert client.ask("POST", "/v1/doctor").status == 200
    gate.set()
    for one in waiting:
        with one:
            assert len(one.answer().json["rows"]) == 1000
