"""HTTP requests and stream frames of the client, checked byte by byte."""

import select
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.client.peer import Talk, listening
from tests.waiting import PATIENCE_S
from waypoint.client import wire
from waypoint.model.errors import Failed, StateConflict, UnknownName

ERROR = {"error": {"code": "conflict", "exit": 4, "tried": "start", "on": "branch x", "said": "no", "next": "wait"}}


def everything(channel: wire.Channel) -> list[tuple[str, bytes]]:
    """Read all frames up to the last (`x`); consecutive output frames are joined."""
    found: list[tuple[str, bytes]] = []
    while not found or found[-1][0] != "x":
        channel.fill()
        while (item := channel.take()) is not None:
            kind, payload = chr(item[0]), bytes(item[1])
            if found and kind in "oe" and found[-1][0] == kind:
                payload = found.pop()[1] + payload
            found.append((kind, payload))
    return found


def stream(path: Path) -> list[tuple[str, bytes]]:
    with closing(wire.Channel(str(path), "/v1/t", {})) as channel:
        return everything(channel)


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("w") / "s"


def test_a_request_is_answered(path: Path) -> None:
    def script(talk: Talk) -> None:
        assert talk.request() == ("POST /v1/x%2Fy", {"a": "ä", "b": [1, None]})
        talk.answer(201, {"c": "ö"})

    with listening(path, script):
        assert wire.request(str(path), "POST", "/v1/x%2Fy", {"a": "ä", "b": [1, None]}) == {"c": "ö"}


def test_an_answer_can_arrive_in_any_pieces(path: Path) -> None:
    answer = b'HTTP/1.1 200 OK\r\ncontent-length: 9\r\nX-Other: y\r\n\r\n{"a":"b"}'

    def script(talk: Talk) -> None:
        talk.request()
        for byte in answer:
            talk.sock.sendall(bytes([byte]))

    with listening(path, script):
        assert wire.request(str(path), "GET", "/") == {"a": "b"}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_chunked_answer_can_arrive_in_any_pieces(path: Path, size: int) -> None:
    chunks = b'1\r\n{\r\n6;x=y\r\n"a":"b\r\n00002\r\n"}\r\n0\r\n\r\n'
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n" + chunks

    def script(talk: Talk) -> None:
        talk.request()
        for start in range(0, len(answer), size):
            talk.sock.sendall(answer[start : start + size])

    with listening(path, script):
        assert wire.request(str(path), "GET", "/") == {"a": "b"}


@pytest.mark.parametrize("chunks", [b"", b"2", b"2\r\n{}", b"2\r\n{}\r\n", b"2\r\n{}\r\n0\r\n"])
def test_a_chunked_answer_without_its_last_chunk_is_a_cut(path: Path, chunks: bytes) -> None:
    """Even if the received part is valid JSON."""

    def script(talk: Talk) -> None:
        talk.request()
        talk.sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)

    with listening(path, script), pytest.raises(wire.Cut):
        wire.request(str(path), "GET", "/")


def test_an_error_is_raised_as_its_class_with_its_four_parts(path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.answer(409, ERROR)

    with listening(path, script), pytest.raises(StateConflict) as raised:
        wire.request(str(path), "GET", "/")
    assert raised.value.to_json() == ERROR["error"]


def test_an_incomplete_answer_is_a_cut(path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}")

    with listening(path, script), pytest.raises(wire.Cut):
        wire.request(str(path), "GET", "/")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n123456789\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 1000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
        b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20000,
    ],
)
def test_a_malformed_answer_is_an_error(path: Path, answer: bytes) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.sock.sendall(answer)

    with listening(path, script), pytest.raises(Failed, match="cannot understand the daemon"):
        wire.request(str(path), "GET", "/")


def test_an_upgrade_request_follows_the_protocol(path: Path) -> None:
    heads = []

    def script(talk: Talk) -> None:
        heads.append(talk.sock.recv(65536))
        talk.upgrade()
        talk.send("x", {})

    with listening(path, script):
        assert stream(path) == [("x", b"{}")]
    lines = heads[0].split(b"\r\n")
    assert lines[0] == b"POST /v1/t HTTP/1.1"
    assert {b"Host: waypoint", b"Connection: Upgrade", b"Upgrade: waypoint-stream"} <= set(lines)


def test_a_refused_upgrade_raises_the_error(path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.answer(404, {"error": {**ERROR["error"], "code": "unknown-name"}})

    with listening(path, script), pytest.raises(UnknownName):
        stream(path)


FRAMES = [
    ("n", b'{"exec": "e1"}'),
    ("o", b"x" * 700_000),
    ("e", b"err"),
    ("o", b"y"),
    ("n", b'{"long": "' + b"z" * 900_000 + b'"}'),
    ("o", b"w" * (1 << 20)),
    ("x", b'{"exit": 0}'),
]


def whole(frames: list[tuple[str, bytes]]) -> bytes:
    return b"".join(wire.frame(kind, payload) for kind, payload in frames)


@pytest.mark.parametrize("piece", [1 << 22, 65536, 4099])
def test_frames_arrive_whole_in_pieces_of_any_size(path: Path, piece: int) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        data = b"HTTP/1.1 101 X\r\n\r\n" + whole(FRAMES)  # head and first frames in one piece
        for start in range(0, len(data), piece):
            talk.sock.sendall(data[start : start + piece])

    with listening(path, script):
        assert stream(path) == FRAMES


def test_a_stream_byte_by_byte_arrives_whole(path: Path) -> None:
    frames = [("n", b"{}"), ("o", b"ab"), ("e", b"c"), ("o", b"d"), ("x", b"{}")]

    def script(talk: Talk) -> None:
        talk.request()
        for byte in b"HTTP/1.1 101 X\r\n\r\n" + whole(frames):
            talk.sock.sendall(bytes([byte]))

    with listening(path, script):
        assert stream(path) == frames


def test_an_empty_output_frame_is_ignored(path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        talk.sock.sendall(whole([("o", b""), ("e", b""), ("x", b"{}")]))

    with listening(path, script):
        assert stream(path) == [("x", b"{}")]


def test_a_frame_larger_than_the_protocol_allows_is_refused(path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        talk.sock.sendall(b"o\x00\x10\x00\x01")

    with listening(path, script), pytest.raises(Failed, match="a frame of 1048577 bytes"):
        stream(path)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 101", b"HTTP/1.1 101 X\r\n\r\no\x00\x00\x00\x09abc"])
def test_a_stream_that_ends_without_its_last_frame_is_a_cut(path: Path, sent: bytes) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.sock.sendall(sent)

    with listening(path, script), pytest.raises(wire.Cut):
        stream(path)


def test_frames_larger_than_the_socket_buffer_arrive_whole(path: Path) -> None:
    received: list[tuple[str, bytes]] = []
    is_full = threading.Event()
    sent = [("i", bytes([number]) * 100_000) for number in range(20)]

    def script(talk: Talk) -> None:
        talk.request()
        talk.upgrade()
        assert is_full.wait(PATIENCE_S)
        while len(received) < len(sent):
            frame = talk.frame()
            assert frame is not None
            received.append(frame)
        talk.send("x", {})

    with listening(path, script), closing(wire.Channel(str(path), "/v1/t", {})) as channel:
        for kind, payload in sent:
            channel.out.queue(kind, payload)
        assert channel.out.flush() > 0  # larger than the socket's buffer
        is_full.set()
        while channel.out.flush():
            select.select([], [channel], [])
        everything(channel)
    assert received == sent


def test_unsent_frames_can_be_listed(path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.request()
        talk.sock.recv(1)

    with listening(path, script), closing(wire.Channel(str(path), "/v1/t", {})) as channel:
        channel.out.queue("i", b"x" * 1_000_000)
        channel.out.flush()  # sends a part
        channel.out.queue("k", b"INT")
        channel.out.queue("i", b"y")
        channel.out.queue("k", b"TERM")
        assert channel.out.unsent("k") == [b"INT", b"TERM"]
        assert channel.out.unsent("i") == [b"y"]


@pytest.mark.parametrize(
    "call", [lambda path: wire.request(path, "GET", "/"), lambda path: wire.Channel(path, "/", {})]
)
def test_without_a_daemon_oserror_is_raised(path: Path, call: Callable[[str], object]) -> None:
    with pytest.raises(FileNotFoundError):
        call(str(path))
