"""Following a session's output, a home's events, and jobs."""

from collections.abc import Iterator
from typing import Literal

from waypoint.client import wire
from waypoint.client.link import ask, not_allowed, open_channel, quote_branch, reach
from waypoint.client.results import JobRecord, field_of, parse, parse_list
from waypoint.model import plainjson
from waypoint.model.errors import Failed, from_json
from waypoint.model.paths import socket_path, spelled

# How many daemons in a row may die without sending an event before `iter_events` fails.
MAX_DEATHS = 5


def iter_logs(home: str, branch: str, *, follow: bool) -> Iterator[bytes]:
    """Yield the scrollback and, with `follow`, further output until the session ends.

    Raises the daemon's error, or Failed if the daemon dies: the position in the output is lost then.
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
        next_step = f"see the output of the session: {spelled(home, 'logs', branch)}"
        raise Failed("follow", f"branch {branch}", str(cut), next_step, code="connection-lost") from cut


def _check(payload: bytes) -> None:
    parts = plainjson.decode_object(payload).get("error")
    if isinstance(parts, dict):
        raise from_json(parts)


def iter_events(home: str, *, follow: bool, after: int | None) -> Iterator[dict[str, object]]:
    """Yield the stored events after the number `after` (None: all), and with `follow` further events.

    docs/protocol.md, section 1, describes the events. If the daemon dies, the next daemon continues, beginning with a
    `restarted` event. Ends when the daemon is stopped. Raises the daemon's error, HostLacks as `open_channel`, or
    Failed if MAX_DEATHS daemons in a row die.
    """
    seq, instance = after or 0, ""
    deaths = 0
    sock = reach(home, lambda path: wire.send_request(path, "GET", _target(seq, instance, follow=follow)))
    while True:
        try:
            for event in _events(sock):
                is_known = event["instance"] == instance
                instance, deaths = str(event["instance"]), 0
                seq = _seq_after(event, seq)
                if event["kind"] != "begin" or not is_known:
                    yield event
            return
        except wire.Cut as cut:
            deaths += 1
            if deaths > MAX_DEATHS:
                next_step = f"see the daemon's log: {spelled(home, 'daemon', 'logs')}"
                raise Failed("follow", f"the events of {home}", str(cut), next_step, code="connection-lost") from cut
        finally:
            sock.close()
        try:
            sock = wire.send_request(socket_path(home), "GET", _target(seq, instance, follow=follow))
        except (FileNotFoundError, ConnectionRefusedError):
            return  # the daemon was stopped: do not start another one only to follow events
        except PermissionError as error:
            raise not_allowed(home) from error


class JobCalls:
    """The jobs of one home's daemon. Jobs end with their daemon: the next one does not know them (UnknownName)."""

    def __init__(self, home: str) -> None:
        """Use Client.jobs. `home`: its real path."""
        self._home = home

    def list(self) -> "list[JobRecord]":
        """Running and recently ended jobs, without results."""
        return parse_list(JobRecord, ask(self._home, "GET", "/v1/jobs"), "jobs")

    def start(self, kind: Literal["doctor", "gc"]) -> JobRecord:
        """Start a job, which continues when this program ends. Raises StateConflict if one of this kind is running."""
        answer = ask(self._home, "POST", "/v1/jobs", {"kind": kind}, may_repeat=False)
        return parse(JobRecord, field_of(answer, "job"))

    def get(self, job: str) -> JobRecord:
        """One job, with its result. Raises UnknownName."""
        return parse(JobRecord, field_of(ask(self._home, "GET", f"/v1/jobs/{job}"), "job"))

    def cancel(self, job: str) -> JobRecord:
        """Cancel a job. It may still be `running` after ten seconds; `wait` waits for its end."""
        return parse(JobRecord, field_of(ask(self._home, "POST", f"/v1/jobs/{job}/cancel"), "job"))

    def wait(self, job: str) -> JobRecord:
        """Wait for the end of a job; return the job with its result. Raises UnknownName if the job does not exist or
        its daemon dies, Failed if the daemon is stopped.
        """
        for event in iter_events(self._home, follow=True, after=None):
            facts = event.get("job")
            is_end = isinstance(facts, dict) and facts.get("id") == job and event.get("change") == "ended"
            # The event of the job's end may no longer be stored, so ask at the beginning and after each gap.
            if is_end or event["kind"] in ("begin", "restarted", "lost"):
                found = self.get(job)
                if found.state != "running":
                    return found
        raise Failed(
            "wait for",
            f"job {job}",
            "the daemon was stopped",
            "start the job again",
        )


def _seq_after(event: dict[str, object], seq: int) -> int:
    """The number of the last event that the reader knows, after `event`. `seq`: that number before."""
    match event:
        case {"kind": "begin"}:
            return seq
        case {"kind": "restarted"}:
            return 0
        case {"seq": int(known)}:
            return known
        case _:
            raise wire.malformed("an event without a number")


def _target(seq: int, instance: str, *, follow: bool) -> str:
    known = f"&instance={instance}" if instance else ""
    return f"/v1/events?after={seq}{known}{'&follow=1' if follow else ''}"


def _events(sock: wire.Socket) -> Iterator[dict[str, object]]:
    head, data = wire.read_head(sock)
    body = wire.iter_body(sock, head, data)
    if head.status != 200:
        wire.result_of(head.status, b"".join(body))
    rest = b""
    for piece in body:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            event = plainjson.decode_object(line)
            if not {"kind", "instance"} <= event.keys():
                raise wire.malformed(f"the event {line[:60]!r}")
            yield event
