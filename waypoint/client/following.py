"""Following: a session's scrollback as bytes, a home's events one by one, and jobs to their end."""

import _socket
from collections.abc import Iterator
from typing import Literal

from waypoint.client import wire
from waypoint.client.link import ask, not_allowed, open_channel, quote_branch, reach
from waypoint.client.results import JobRecord, field_of, parse, parse_list
from waypoint.model import plainjson
from waypoint.model.errors import Failed, from_json
from waypoint.model.paths import socket_path, spelled

# How often in a row `iter_events` asks again after a daemon has died without having told a single event. A daemon that
# tells one starts the count afresh.
MAX_FRUITLESS = 5


def iter_logs(home: str, branch: str, *, follow: bool) -> Iterator[bytes]:
    """Yield the scrollback and, with `follow`, what the terminal shows from then on, until the session ends.

    Raises the daemon's error, Failed if the daemon goes away: where to go on from cannot be known.
    """
    target = f"/v1/sessions/{quote_branch(branch)}/logs"
    try:
        channel = open_channel(home, target, {"follow": follow})
        try:
            while True:
                channel.fill()
                while (item := channel.take()) is not None:
                    kind, payload = chr(item[0]), bytes(item[1])
                    if kind == "x":
                        return _check(payload)
                    if kind == "o":
                        yield payload
        finally:
            channel.close()
    except wire.Cut as cut:
        next_step = f"see what it has printed: {spelled(home, 'logs', branch)}"
        raise Failed("follow", f"branch {branch}", str(cut), next_step) from cut


def _check(payload: bytes) -> None:
    parts = plainjson.decode_object(payload).get("error")
    if isinstance(parts, dict):
        raise from_json(parts)


def iter_events(home: str, *, follow: bool, after: int | None) -> Iterator[dict[str, object]]:
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


class JobCalls:
    """The jobs of one home's daemon. They end with their daemon: the next one knows none of them (UnknownName)."""

    def __init__(self, home: str) -> None:
        """Use Client.jobs. `home`: its real path."""
        self._home = home

    def list(self) -> "list[JobRecord]":
        """The jobs that run, and those that ended lately, without their results."""
        return parse_list(JobRecord, ask(self._home, "GET", "/v1/jobs"), "jobs")

    def start(self, kind: Literal["doctor", "gc"]) -> JobRecord:
        """Begin a job, which goes on when this program ends. Raises StateConflict if a job of this kind runs."""
        answer = ask(self._home, "POST", "/v1/jobs", {"kind": kind}, may_repeat=False)
        return parse(JobRecord, field_of(answer, "job"))

    def get(self, job: str) -> JobRecord:
        """One job, with its result. Raises UnknownName."""
        return parse(JobRecord, field_of(ask(self._home, "GET", f"/v1/jobs/{job}"), "job"))

    def cancel(self, job: str) -> JobRecord:
        """End a job before its time. It may still be `running` after ten seconds; `wait` tells of its end."""
        return parse(JobRecord, field_of(ask(self._home, "POST", f"/v1/jobs/{job}/cancel"), "job"))

    def wait(self, job: str) -> JobRecord:
        """The job when it has ended, with its result. Raises UnknownName also if its daemon dies, Failed if the daemon
        is stopped.
        """
        for event in iter_events(self._home, follow=True, after=None):
            facts = event.get("job")
            is_end = isinstance(facts, dict) and facts.get("id") == job and event.get("change") == "ended"
            # Whoever listens from now on misses no end; what is kept of earlier events need not have this one.
            if is_end or event["kind"] in ("begin", "restarted", "lost"):
                found = self.get(job)
                if found.state != "running":
                    return found
        raise Failed(
            "wait for",
            f"job {job}",
            "the daemon was stopped",
            "'GET /v1/jobs' lists what there is; start the job again",
        )


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


def _events(sock: _socket.socket) -> Iterator[dict[str, object]]:
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
