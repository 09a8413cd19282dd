"""The stream of events: order, lost events, followers, and slow readers, which delay nobody."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.daemon.conftest import RunningServer
from tests.daemon.raw_client import RawClient
from tests.daemon.test_outlet import in_loop
from waypoint.model.activity import EventsQuery, SessionEvent
from waypoint.service.background.events import KEPT, Events


def publish(server: RunningServer, count: int = 1) -> None:
    """Publish events from a thread that is not the server's."""
    for number in range(count):
        server.service.events.publish(SessionEvent, change="started", branch=f"b{number}", session="s", pid=number)


def lines(data: bytes) -> list[dict[str, Any]]:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def ask(client: RawClient, query: str = "") -> list[dict[str, Any]]:
    answer = client.ask("GET", f"/v1/events{query}")
    assert answer.headers["content-type"] == "application/x-ndjson"
    return lines(answer.body)


def follow(client: RawClient, query: str = "") -> dict[str, Any]:
    """Begin to follow the events; return the first line."""
    client.send(f"GET /v1/events?follow=1{query} HTTP/1.1\r\nHost: w\r\n\r\n".encode())
    assert client.head().status == 200
    (begin,) = lines(client.chunk())
    return begin


def test_without_follow_the_past_events_are_sent_and_the_answer_ends(server: RunningServer, client: RawClient) -> None:
    (begin,) = ask(client)
    assert (begin["kind"], begin["seq"]) == ("begin", 0)
    publish(server, 3)
    begin, *events = ask(client)
    assert begin["seq"] == 3
    assert [one["seq"] for one in events] == [1, 2, 3]
    assert {one["instance"] for one in (begin, *events)} == {server.service.events.instance}
    assert events[1] == {
        "kind": "session",
        "seq": 2,
        "instance": begin["instance"],
        "at": events[1]["at"],
        "change": "started",
        "branch": "b1",
        "session": "s",
        "pid": 1,
    }
    assert [one["seq"] for one in ask(client, "?after=2")] == [3, 3]
    assert client.ask("GET", "/v1/status").status == 200


def test_a_follower_gets_each_event_at_once_and_in_order(server: RunningServer, client: RawClient) -> None:
    publish(server, 2)
    assert follow(client, "&after=1")["seq"] == 2
    assert [one["seq"] for one in lines(client.chunk())] == [2]
    for number in range(3, 300):
        publish(server)
        (event,) = lines(client.chunk())
        assert event["seq"] == number


def test_each_event_of_several_threads_is_sent_once(server: RunningServer, client: RawClient) -> None:
    follow(client)
    threads = [threading.Thread(target=publish, args=(server, 100)) for _ in range(8)]
    for one in threads:
        one.start()
    seen: list[int] = []
    while len(seen) < 800:
        seen += [one["seq"] for one in lines(client.chunk())]
    assert seen == list(range(1, 801))
    for one in threads:
        one.join()


def test_a_slow_reader_gets_the_number_of_lost_events(server: RunningServer, client: RawClient) -> None:
    publish(server, KEPT + 10)
    begin, lost, *events = ask(client)
    assert begin["seq"] == KEPT + 10
    assert (lost["kind"], lost["count"], lost["seq"]) == ("lost", 10, 10)
    assert [one["seq"] for one in events] == list(range(11, KEPT + 11))


def test_a_follower_that_does_not_read_delays_no_other(server: RunningServer, client: RawClient) -> None:
    with server.connect() as deaf:
        follow(deaf)
        follow(client)
        seen = 0
        for _ in range(20):
            publish(server, 500)
            while seen % 500 or not seen:
                got = lines(client.chunk())
                seen = got[-1]["seq"]
                assert not [one for one in got if one["kind"] == "lost"]
            seen += 1
        kinds: dict[str, int] = {"lost": 0}
        last = 0
        while last < 10_000:
            for one in lines(deaf.chunk()):
                kinds["lost"] += one.get("count", 0)
                kinds[one["kind"]] = kinds.get(one["kind"], 0) + (one["kind"] != "lost")
                last = one["seq"]
        assert kinds["lost"] > 0
        assert kinds["session"] + kinds["lost"] == 10_000


@pytest.mark.parametrize("query", ["&instance=0123456789abcdef&after=1", "&after=99"])
def test_a_reader_that_continues_from_another_daemon_gets_restarted_first(
    server: RunningServer, client: RawClient, query: str
) -> None:
    publish(server, 2)
    restarted = follow(client, query)
    assert (restarted["kind"], restarted["instance"]) == ("restarted", server.service.events.instance)
    assert [one["seq"] for one in lines(client.chunk())] == [1, 2]


def test_a_reader_that_continues_with_the_same_daemon_gets_begin_first(
    server: RunningServer, client: RawClient
) -> None:
    publish(server, 2)
    assert follow(client, f"&instance={server.service.events.instance}&after=1")["kind"] == "begin"


def test_a_follower_does_not_delay_a_stop(serve: Callable[..., RunningServer]) -> None:
    server = serve()
    with server.connect() as client:
        follow(client)
        server.stop()
        with pytest.raises((EOFError, ConnectionResetError)):
            client.chunk()


def test_followers_that_disconnect_are_forgotten(server: RunningServer, client: RawClient) -> None:
    for _ in range(50):
        with server.connect() as one:
            follow(one)
    while server.service.events._waiting:
        assert client.ask("GET", "/v1/status").status == 200


@pytest.mark.soak(part="timing")
@in_loop
async def test_publishing_is_fast_with_many_listeners() -> None:
    events = Events(asyncio.get_running_loop())

    async def listen() -> None:
        async for _ in events.lines(EventsQuery(follow=True)):
            continue

    def cost_us() -> float:
        begin = time.perf_counter()
        for _ in range(200):
            events.publish(SessionEvent, change="started", branch="b", session="s", pid=1)
        return (time.perf_counter() - begin) * 1e6 / 200

    listeners = [asyncio.create_task(listen()) for _ in range(500)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert min(cost_us() for _ in range(5)) < 500
    for one in listeners:
        one.cancel()
    await asyncio.gather(*listeners, return_exceptions=True)
