"""Hostile and broken clients get a clear answer or the end of the connection; the server keeps working."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.daemon.conftest import RunningServer
from tests.daemon.raw_client import RawClient, frame
from waypoint.daemon.http.messages import Limits

HOSTILE = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
UPGRADE = (
    b"POST /v1/sessions/main/attach HTTP/1.1\r\nHost: w\r\nConnection: Upgrade\r\n"
    b"Upgrade: waypoint-stream\r\nContent-Length: 0\r\n\r\n"
)
# Parts of valid requests, so that some of the noise is parsed as a request.
WORDS = st.sampled_from(
    [
        b"GET ",
        b"POST ",
        b"/v1/status",
        b"/v1/sessions",
        b"/v1/sessions/a%2Fb/exec",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
        b"Host: w\r\n",
        b"Content-Length: 3\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 99999999999999999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: Upgrade\r\n",
        b"Upgrade: waypoint-stream\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\n",
        b"\0",
        b"{}",
        b"5\r\n",
        b"\xff\xfe",
    ]
)
NOISE = st.lists(st.one_of(WORDS, st.binary(max_size=40)), max_size=12).map(b"".join)


def is_healthy(server: RunningServer) -> bool:
    with server.connect() as client:
        return client.ask("GET", "/v1/status").status == 200


def ask_for_ever(client: RawClient) -> None:
    while True:
        client.send(b"GET /v1/openapi.json HTTP/1.1\r\nHost: w\r\n\r\n")


def drain(client: RawClient) -> bytes:
    """Read until the server closes the connection; return a dot for each byte."""
    received = b""
    while not client.ended():
        received += b"."
    return received


@HOSTILE
@given(noise=NOISE)
def test_random_bytes_do_not_harm_the_server(server: RunningServer, noise: bytes) -> None:
    with server.connect() as client:
        client.send(noise)
        client.sock.shutdown(socket.SHUT_WR)
        drain(client)
    assert is_healthy(server)


@HOSTILE
@given(
    noise=st.one_of(st.binary(max_size=64), st.lists(st.binary(max_size=8).map(lambda b: frame("i", b))).map(b"".join))
)
def test_random_frames_do_not_harm_the_server(server: RunningServer, noise: bytes) -> None:
    with server.connect() as client:
        client.ask("POST", "/v1/sessions", {"branch": "main"})
        client.send(UPGRADE + noise)
        client.sock.shutdown(socket.SHUT_WR)
        assert client.answer().status == 101
        drain(client)
    assert is_healthy(server)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /v1/status HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/status HTTP/2.0\r\nHost: w\r\n\r\n", 505),
        (b"GET /v1/status HTTP/1.1\r\nHost: w\r\nX: " + b"y" * 20000, 431),
        (b"GET /" + b"a" * 20000, 431),
        (b"POST /v1/doctor HTTP/1.1\r\nHost: w\r\nContent-Length: 1048577\r\n\r\n", 413),
        (b"POST /v1/doctor HTTP/1.1\r\nHost: w\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        (b"POST /v1/doctor HTTP/1.1\r\nHost: w\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /v1/doctor HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /v1/doctor HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /v1/nowhere HTTP/1.1\r\nHost: w\r\nContent-Length: 5\r\n\r\n", 404),
    ],
)
def test_a_violation_of_http_gets_one_answer_and_the_end_of_the_connection(
    server: RunningServer, request_bytes: bytes, status: int
) -> None:
    with server.connect() as client:
        client.send(request_bytes)
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert answer.json["error"]["code"] == "usage"
        assert client.ended()


def test_a_chunked_body_over_the_limit_is_refused(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(b"POST /v1/doctor HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(17):
            client.send(chunk)
        assert client.answer().status == 413


@pytest.mark.soak(part="floods")
def test_a_body_in_chunks_of_one_byte_does_not_delay_others(serve: Callable[..., RunningServer]) -> None:
    server = serve(incomplete_s=3.0)

    def flood() -> None:
        with server.connect(30) as client, contextlib.suppress(OSError):  # the server closes the connection
            client.send(b"POST /v1/doctor HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send(b"1\r\n \r\n" * 1_000_000)

    sender = threading.Thread(target=flood)
    sender.start()
    while sender.is_alive():
        assert is_healthy(server)  # within the timeout of a RawClient (2 s)
    sender.join()


def test_the_text_of_an_exec_may_have_16_mib(server: RunningServer) -> None:
    with server.connect() as client:
        client.ask("POST", "/v1/sessions", {"branch": "main"})
        assert client.upgrade("/v1/sessions/main/exec", {"text": "\n" * (16 << 20)}).status == 101
    with server.connect() as client:
        answer = client.upgrade("/v1/sessions/main/exec", {"text": "x" * ((16 << 20) + 1)})
        assert (answer.status, answer.json["error"]["said"]) == (400, "the text may have at most 16777216 bytes")


def test_a_client_that_is_refused_while_it_sends_can_read_the_answer(server: RunningServer) -> None:
    with server.connect() as client:
        sender = threading.Thread(target=lambda: client.send(b"x" * (256 << 10)))
        client.send(b"POST /v1/doctor HTTP/1.1\r\nHost: w\r\nContent-Length: 2000000\r\n\r\n")
        sender.start()
        assert client.answer().status == 413
        sender.join()


def test_requests_that_arrive_too_slowly_are_refused(serve: Callable[..., RunningServer]) -> None:
    server = serve(incomplete_s=0.2)
    with server.connect() as slow, server.connect() as slower:
        slow.send(b"GET /v1/status HT")
        slower.send(b"POST /v1/doctor HTTP/1.1\r\nHost: w\r\nContent-Length: 5\r\n\r\n{")
        assert is_healthy(server)
        assert slow.answer().status == 408
        assert slower.answer().status == 408
        assert slow.ended()
        assert slower.ended()


def test_a_client_that_sends_nothing_stays_connected(serve: Callable[..., RunningServer]) -> None:
    server = serve(incomplete_s=0.1)
    with server.connect() as silent, server.connect() as slow:
        slow.send(b"GET")
        assert slow.answer().status == 408  # the time for a request has passed
        assert silent.ask("GET", "/v1/status").status == 200


def test_a_client_that_does_not_read_its_answers_is_disconnected(serve: Callable[..., RunningServer]) -> None:
    server = serve(answer_s=0.2)
    with server.connect() as deaf:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            ask_for_ever(deaf)
        assert is_healthy(server)


def test_a_client_that_does_not_read_its_stream_does_not_delay_others(server: RunningServer) -> None:
    with server.connect() as deaf:
        deaf.ask("POST", "/v1/sessions", {"branch": "floods"})
        deaf.upgrade("/v1/sessions/floods/attach")
        for _ in range(20):
            assert is_healthy(server)


def test_a_client_that_does_not_read_its_stream_does_not_delay_a_stop(serve: Callable[..., RunningServer]) -> None:
    server = serve(answer_s=0.2)
    with server.connect() as deaf:
        deaf.ask("POST", "/v1/sessions", {"branch": "floods"})
        deaf.upgrade("/v1/sessions/floods/attach")
        server.stop()


def test_a_thousand_silent_clients_do_not_keep_others_out(serve: Callable[..., RunningServer]) -> None:
    server = serve(connections=64)
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(server.connect())
        assert is_healthy(server)


def test_a_new_client_is_refused_while_all_connections_are_busy(serve: Callable[..., RunningServer]) -> None:
    server = serve(connections=2)
    with server.connect() as one, server.connect() as two:
        one.ask("POST", "/v1/sessions", {"branch": "waits"})
        for busy in (one, two):
            assert busy.upgrade("/v1/sessions/waits/attach").status == 101
        with server.connect() as third:
            assert third.answer().status == 503
            assert third.ended()
        server.on_loop(server.service.released.set)
        one.send_frame("i", b"")
        assert one.frame()[0] == "x"
        assert one.ended()
        assert is_healthy(server)


def test_a_frame_of_four_gigabytes_is_refused_before_it_is_read(server: RunningServer) -> None:
    with server.connect() as client:
        client.ask("POST", "/v1/sessions", {"branch": "main"})
        client.upgrade("/v1/sessions/main/attach", early=struct.pack(">cI", b"i", 0xFFFFFFFF))
        kind, payload = client.frame()
        assert (kind, b"at most 1048576 bytes" in payload) == ("x", True)


def test_clients_that_disconnect_at_once_do_not_harm_the_server(server: RunningServer) -> None:
    for data in (b"", b"GET", UPGRADE[:-4], b"GET /v1/status HTTP/1.1\r\nHost: w\r\n\r\n") * 50:
        with server.connect() as client:
            client.send(data)
    assert is_healthy(server)


def test_the_limits_are_as_documented() -> None:
    users = {"connections_of_user": 128, "requests_of_user": 8}
    assert Limits() == Limits(
        headers_bytes=16384, incomplete_s=10.0, answer_s=30.0, goodbye_s=1.0, connections=512, **users
    )
