"""A session's scrollback as a stream of bytes."""

from collections.abc import Iterator

from waypoint.client import plainjson, wire
from waypoint.client.link import open_channel, quote_branch
from waypoint.model.errors import Failed, from_json


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
        raise Failed("follow", f"branch {branch}", str(cut), f"waypoint logs {branch}") from cut


def _check(payload: bytes) -> None:
    parts = plainjson.decode_object(payload).get("error")
    if isinstance(parts, dict):
        raise from_json(parts)
