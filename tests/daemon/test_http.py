"""HTTP requests and answers as docs/protocol.md, section 1, describes them."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.daemon.conftest import RunningServer
from tests.daemon.raw_client import RawClient
from waypoint.model.requests import ExecRequest


def test_status_describes_the_daemon(client: RawClient) -> None:
    answer = client.ask("GET", "/v1/status")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["pid"] == os.getpid()


def test_one_connection_serves_many_requests(client: RawClient) -> None:
    for _ in range(20):
        assert client.ask("GET", "/v1/status").status == 200


def test_requests_sent_at_once_are_answered_in_order(client: RawClient) -> None:
    ask = b"GET %s HTTP/1.1\r\nHost: w\r\n\r\n"
    client.send(ask % b"/v1/status" + ask % b"/v1/sessions" + ask % b"/v1/nowhere")
    assert "pid" in client.answer().json
    assert client.answer().json == {"sessions": []}
    assert client.answer().status == 404


def test_start_answers_201_and_200_if_the_session_is_live_already(client: RawClient) -> None:
    assert client.ask("POST", "/v1/sessions", {"branch": "a/b"}).status == 201
    again = client.ask("POST", "/v1/sessions", {"branch": "a/b"})
    assert (again.status, again.json["session"]["state"]) == (200, "live")


def test_a_branch_in_a_path_is_percent_encoded(client: RawClient) -> None:
    client.ask("POST", "/v1/sessions", {"branch": "a/b"})
    assert client.ask("GET", "/v1/sessions/a%2Fb").json["session"]["branch"] == "a/b"
    assert client.ask("POST", "/v1/sessions/a%2fb/stop").json == {
        "branch": "a/b",
        "capture": "c0ffee",
        "exit": 0,
        "tier": None,
        "degraded": None,
    }


def test_sessions_with_all_lists_ended_branches_too(client: RawClient) -> None:
    assert client.ask("GET", "/v1/sessions?all=1").json["sessions"][0]["state"] == "ended"
    assert client.ask("GET", "/v1/sessions?all=0").json["sessions"] == []


def test_the_absolute_form_of_a_target_is_understood(client: RawClient) -> None:
    assert client.ask("GET", "http://waypoint/v1/status").status == 200


def test_handlers_get_the_pid_uid_and_gid_of_the_client(server: RunningServer, client: RawClient) -> None:
    client.ask("POST", "/v1/sessions", {"branch": "main"})
    assert server.service.peers == [(os.getpid(), os.getuid(), os.getgid())]


def test_a_client_that_waits_for_100_continue_gets_it(client: RawClient) -> None:
    body = b'{"branch": "main"}'
    head = b"POST /v1/sessions HTTP/1.1\r\nHost: w\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    client.send(head % len(body))
    assert client.answer().status == 100
    client.send(body)
    assert client.answer().status == 201


def test_a_client_that_has_shut_down_its_sending_side_gets_its_answer(client: RawClient) -> None:
    client.send(b"GET /v1/status HTTP/1.1\r\nHost: w\r\n\r\n")
    client.sock.shutdown(socket.SHUT_WR)
    assert client.answer().status == 200
    assert client.ended()


def test_a_chunked_body_is_read_like_any_other(client: RawClient) -> None:
    body = b'{"branch": "main"}'
    client.send(b"POST /v1/sessions HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n")
    for byte in body:
        client.send(b"1\r\n%c\r\n" % byte)
    client.send(b"0\r\n\r\n")
    assert client.answer().status == 201


@pytest.mark.parametrize(
    ("branch", "status", "code"),
    [
        ("host-lacks", 501, "host-lacks"),
        ("not-allowed", 403, "not-allowed"),
        ("conflict", 409, "conflict"),
        ("cannot-capture", 422, "cannot-capture"),
        ("store-damaged", 500, "store-damaged"),
        ("failure", 500, "failure"),
        ("surprise", 500, "bug"),
        ("gone", 500, "bug"),
    ],
)
def test_each_class_of_error_has_its_status(client: RawClient, branch: str, status: int, code: str) -> None:
    answer = client.ask("POST", "/v1/sessions", {"branch": branch})
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert set(answer.json["error"]) == {"code", "exit", "tried", "on", "said", "next"}
    assert client.ask("GET", "/v1/status").status == 200


def test_an_unknown_branch_is_404(client: RawClient) -> None:
    answer = client.ask("GET", "/v1/sessions/nowhere")
    assert (answer.status, answer.json["error"]["code"], answer.json["error"]["exit"]) == (404, "unknown-name", 2)


def test_a_bug_is_logged_without_the_values_in_its_message(client: RawClient, caplog: pytest.LogCaptureFixture) -> None:
    answer = client.ask("POST", "/v1/sessions", {"branch": "surprise", "env": {"TERM": "hidden-value"}})
    assert "a secret value" in answer.json["error"]["said"]  # the client may see the values that it sent
    assert "KeyError" in caplog.text
    assert "memory_service.py" in caplog.text
    assert "secret value" not in caplog.text
    assert "hidden-value" not in caplog.text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"branch": "main", "colour": "red"}, "colour"),
        ({}, "branch"),
        ({"branch": 7}, "branch"),
        ({"branch": "main", "net": "everywhere"}, "net"),
        ({"branch": "main", "cwd": "/a\0b"}, "contains a NUL"),
        ({"branch": "main", "env": {"LANG": "\0"}}, "contains a NUL"),
        ({"branch": "-x"}, "each part starts with a letter or a digit"),
        ({"branch": "main", "from_name": "a//b"}, "a part between slashes is empty"),
        ({"branch": "main", "rows": -1}, "rows"),
        ({"branch": "main", "cols": 65536}, "cols"),
        (b"{", ""),
        (b"\xff", ""),
        (b'{"branch": "\xff"}', ""),
        (b"[" * 100_000, ""),
        (b'{"branch": "\\ud800"}', ""),
        (b"null", ""),
    ],
)
def test_a_request_body_that_breaks_the_schema_is_refused(client: RawClient, body: object, reason: str) -> None:
    """`reason`: part of the message; "" if the whole message comes from a library."""
    answer = client.ask("POST", "/v1/sessions", body)
    assert (answer.status, answer.json["error"]["code"]) == (400, "usage")
    assert reason in answer.json["error"]["said"]
    assert client.ask("GET", "/v1/status").status == 200


def test_a_backslash_before_u0000_in_a_command_is_text(server: RunningServer, client: RawClient) -> None:
    client.ask("POST", "/v1/sessions", {"branch": "main"})
    assert client.upgrade("/v1/sessions/main/exec", {"text": r"printf '\u0000'"}).status == 101
    assert server.service.requests[-1] == ExecRequest(text=r"printf '\u0000'")


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/status/", 404),
        ("GET", "//v1/status", 404),
        ("DELETE", "/v1/sessions", 405),
        ("GET", "/v1/sessions/main/attach", 405),
        ("GET", "/v1/sessions/..", 400),
        ("GET", "/v1/sessions/a%2", 400),
        ("GET", "/v1/sessions/a% 2", 400),
        ("GET", "/v1/sessions/%ff", 400),
        ("GET", "/v1/sessions?every=1", 400),
        ("GET", "/v1/sessions?all=1&all=0", 400),
        ("GET", "/v1/sessions?all=perhaps", 400),
        ("POST", "/v1/doctor?x=1", 400),
    ],
)
def test_an_unknown_or_malformed_target_is_refused(client: RawClient, method: str, target: str, status: int) -> None:
    answer = client.ask(method, target)
    assert answer.status == status
    assert answer.json["error"]["code"] == "usage"


def test_a_get_with_a_body_is_refused(client: RawClient) -> None:
    assert client.ask("GET", "/v1/status", {}).status == 400


def test_requests_under_way_are_answered_before_the_server_stops(server: RunningServer, client: RawClient) -> None:
    client.send(b'POST /v1/sessions HTTP/1.1\r\nHost: w\r\nContent-Length: 18\r\n\r\n{"branch": "slow"}')
    with server.connect() as other:
        while not server.service.requests:
            other.ask("GET", "/v1/status")
        other.ask("POST", "/v1/daemon/stop")
        assert other.ended()
    server.on_loop(server.service.released.set)
    assert client.answer().status == 201


def test_a_stop_is_answered(serve: Callable[..., RunningServer]) -> None:
    server = serve()
    with server.connect() as client:
        assert client.ask("POST", "/v1/daemon/stop").json == {}
        assert client.ended()


@pytest.mark.soak(part="timing")
def test_a_small_request_takes_two_rounds_of_the_event_loop_and_no_timer(
    server: RunningServer, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first round the loop sees the client's data, in the second it answers."""
    done: list[str] = []

    def count(name: str) -> None:
        act = getattr(asyncio.BaseEventLoop, name)

        def counted(*given: Any, **how: Any) -> Any:
            done.append(name)
            return act(*given, **how)

        monkeypatch.setattr(asyncio.BaseEventLoop, name, counted)

    assert client.ask("GET", "/v1/status").status == 200
    count("_run_once")
    count("call_at")
    for _ in range(20):
        assert client.ask("GET", "/v1/status").status == 200
    assert done.count("call_at") == 0
    assert 20 <= done.count("_run_once") <= 2 * 20 + 2
