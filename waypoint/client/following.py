"""Following: a session's scrollback as bytes, a home's events one by one."""

import _socket

from waypoint.client import wire
from waypoint.client.link import not_allowed, open_channel, quote_branch, reach
from waypoint.model import plainjson
from waypoint.model.errors import Failed, from_json
from waypoint.model.paths import socket_path, spelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# How often in a row a follower asks again after a daemon has died without having told anything. A daemon that tells
# something starts the count afresh.
MAX_FRUITLESS = 5


def iter_logs(home: str, branch: str, *, follow: bool) -> "Iterator[bytes]":
    """Yield the scrollback and, with `follow`, what the terminal shows from then on, until the session ends.

    If the daemon dies, the next one goes on where it was. Raises the daemon's error, Failed if daemon after daemon
    dies.
    """
    target, place = f"/v1/sessions/{quote_branch(branch)}/logs", dict[str, object]()
    fruitless, offset = 0, 0
    while True:
        channel = open_channel(home, target, {"follow": follow, **place, "offset": offset if place else 0})
        try:
            while True:
                channel.fill()
                while (item := channel.take()) is not None:
                    kind, payload = chr(item[0]), bytes(item[1])
                    if kind == "x":
                        return _check(payload)
                    if kind == "o":
                        offset, fruitless = offset + len(payload), 0
                        yield payload
                    elif kind == "n" and isinstance(noted := plainjson.decode_object(payload).get("logs"), dict):
                        place, offset = {"session": noted["session"], "position": noted["position"]}, 0
        except wire.Cut as cut:
            fruitless += 1
            if fruitless > MAX_FRUITLESS:
                next_step = f"see what it has printed: {spelled(home, 'logs', branch)}"
                raise Failed("follow", f"branch {branch}", str(cut), next_step) from cut
        finally:
            channel.close()


def _check(payload: bytes) -> None:
    parts = plainjson.decode_object(payload).get("error")
    if isinstance(parts, dict):
        raise from_json(parts)


def iter_events(home: str, *, follow: bool, after: int | None) -> "Iterator[dict[str, object]]":
    """Yield what the daemon has kept of the events after the number `after` (None: all), and with `follow` what comes.

    Each is as docs/protocol.md, section 1, has it. If a daemon dies, the next one is asked to go on, which begins with
    a `restarted`; ends when the daemon is stopped. Raises the daemon's error, HostLacks as `open_channel`, Failed if
    daemon after daemon dies.
    """
    seq, instance = after or 0, ""
    fruitless = 0
    sock = reach(home, lambda path: wire.send_request(path, "GET", _target(seq, instance, follow=follow)))
    while True:
        try:
            for event in _events(sock):
                is_known = event["instance"] == instance
                instance, fruitless = str(event["instance"]), 0
                seq = _seq_after(event, seq)
                if event["kind"] != "begin" or not is_known:
                    yield event
            return
        except wire.Cut as cut:
            fruitless += 1
            if fruitless > MAX_FRUITLESS:
                next_step = f"see the daemon's log: {spelled(home, 'daemon', 'logs')}"
                raise Failed("follow", f"the events of {home}", str(cut), next_step) from cut
        finally:
            sock.close()
        try:
            sock = wire.send_request(socket_path(home), "GET", _target(seq, instance, follow=follow))
        except (FileNotFoundError, ConnectionRefusedError):
            return  # the daemon was stopped: to ask for events is no reason to start another one
        except PermissionError as error:
            raise not_allowed(home) from error


def _seq_after(event: dict[str, object], seq: int) -> int:
    """Which event is known to the reader after `event`, if `seq` was it before."""
    match event:
        case {"kind": "begin"}:
            return seq
        case {"kind": "restarted"}:
            return 0
        case {"seq": int(known)}:
            return known
        case _:
            raise wire.nonsense("an event without a number")


def _target(seq: int, instance: str, *, follow: bool) -> str:
    known = f"&instance={instance}" if instance else ""
    return f"/v1/events?after={seq}{known}{'&follow=1' if follow else ''}"


def _events(sock: _socket.socket) -> "Iterator[dict[str, object]]":
    head, data = wire.read_head(sock)
    body = wire.iter_body(sock, head, data)
    if head.status != 200:
        wire.judge(head.status, b"".join(body))
    rest = b""
    for piece in body:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            event = plainjson.decode_object(line)
            if not {"kind", "instance"} <= event.keys():
                raise wire.nonsense(f"the event {line[:60]!r}")
            yield event
