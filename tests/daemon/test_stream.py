"""Streams after the upgrade, as docs/protocol.md, section 2, describes them."""

import json
import os

import pytest

from tests.daemon.conftest import RunningServer
from tests.daemon.raw_client import RawClient, frame


@pytest.fixture
def session(client: RawClient) -> RawClient:
    """A client of a server that has the branches whose names select a behaviour of MemoryService."""
    for branch in ("main", "fails", "surprises", "waits", "floods", "cancels"):
        assert client.ask("POST", "/v1/sessions", {"branch": branch}).status == 201
    return client


def test_frames_are_sent_in_both_directions_until_the_end_frame(session: RawClient) -> None:
    answer = session.upgrade("/v1/sessions/main/attach", {"rows": 50, "cols": 100})
    assert (answer.status, answer.headers["upgrade"]) == (101, "waypoint-stream")
    session.send_frame("i", b"hello")
    assert session.frame() == ("o", b"hello")
    session.send_frame("w", bytes([0, 50, 1, 0]))
    assert session.frame() == ("n", b'{"size":[50,256]}')
    session.send_frame("k", b"INT")
    assert session.frame() == ("e", b"INT")
    session.send_frame("i", b"")
    assert session.frame() == ("x", b'{"exit":0}')
    assert session.ended()


def test_bytes_after_the_request_belong_to_the_stream(session: RawClient) -> None:
    early = frame("i", b"first") + frame("i", b"second")[:3]
    session.upgrade("/v1/sessions/main/attach", early=early)
    session.send(frame("i", b"second")[3:])
    assert session.frame() == ("o", b"first")
    assert session.frame() == ("o", b"second")


def test_frames_cut_into_single_bytes_are_put_together(session: RawClient) -> None:
    session.upgrade("/v1/sessions/main/attach")
    for byte in frame("i", b"abc") + frame("i", b"d"):
        session.send(bytes([byte]))
    assert session.frame() == ("o", b"abc")
    assert session.frame() == ("o", b"d")


def test_the_largest_frame_passes_unchanged(session: RawClient) -> None:
    session.upgrade("/v1/sessions/main/attach")
    payload = os.urandom(1 << 20)
    session.send_frame("i", payload)
    assert session.frame() == ("o", payload)


@pytest.mark.parametrize(
    "data", [frame("o", b""), frame("\0", b""), frame("w", b"abc"), frame("k", b"x" * 17), b"i\x00\x10\x00\x01"]
)
def test_a_frame_that_breaks_the_protocol_ends_the_stream_with_an_error(session: RawClient, data: bytes) -> None:
    session.upgrade("/v1/sessions/main/attach")
    session.send(data)
    kind, payload = session.frame()
    error = json.loads(payload)["error"]
    assert (kind, error["code"]) == ("x", "usage")
    assert error["next"] == "send frames as docs/protocol.md, section 2, describes them"
    assert session.ended()


def test_a_stream_without_upgrade_is_426(session: RawClient) -> None:
    assert session.ask("POST", "/v1/sessions/main/attach").status == 426


def test_a_wrong_request_for_a_stream_gets_an_ordinary_error_answer(session: RawClient) -> None:
    assert session.upgrade("/v1/sessions/nowhere/logs").status == 404
    assert session.upgrade("/v1/sessions/main/exec", {"txt": "x"}).status == 400
    assert session.ask("GET", "/v1/status").status == 200


@pytest.mark.parametrize(("branch", "code"), [("fails", "failure"), ("surprises", "bug"), ("cancels", "bug")])
def test_an_error_after_the_upgrade_is_an_end_frame(session: RawClient, branch: str, code: str) -> None:
    session.upgrade(f"/v1/sessions/{branch}/attach")
    kind, payload = session.frame()
    assert (kind, json.loads(payload)["error"]["code"]) == ("x", code)


def test_an_upgrade_header_on_a_plain_route_is_ignored(session: RawClient) -> None:
    headers = "Connection: Upgrade\r\nUpgrade: waypoint-stream\r\n"
    assert session.ask("POST", "/v1/doctor", headers=headers).status == 200


def test_a_stop_of_the_server_ends_streams_with_an_error(server: RunningServer, session: RawClient) -> None:
    session.upgrade("/v1/sessions/waits/attach")
    with server.connect() as other:
        other.ask("POST", "/v1/daemon/stop")
    kind, payload = session.frame()
    assert (kind, json.loads(payload)["error"]["said"]) == ("x", "the daemon was stopped")
    assert session.ended()


def test_a_stream_ends_when_its_client_disconnects(server: RunningServer, session: RawClient) -> None:
    session.upgrade("/v1/sessions/floods/attach")
    session.frame()
    session.sock.close()
    with server.connect() as other:
        while not server.service.ended_streams:
            assert other.ask("GET", "/v1/status").status == 200
