"""What sessions have changed: compared with the machine, with captures, and with each other."""

from collections.abc import Iterator, Sequence

from waypoint.client import wire
from waypoint.client.link import reach
from waypoint.client.quoting import as_json_text
from waypoint.client.results import DiffResult
from waypoint.model import plainjson
from waypoint.model.errors import Failed, from_json
from waypoint.model.names import parse_name
from waypoint.model.paths import spelled


def iter_diff(home: str, request: dict[str, object]) -> Iterator[dict[str, object]]:
    """The lines of an answer, as docs/protocol.md, section 1, has them, but for `error`, which is raised, and `end`,
    without which Failed is raised. `request`: as there.
    """
    sock = reach(home, lambda path: wire.send_request(path, "POST", "/v1/diffs", request))
    try:
        head, data = wire.read_head(sock)
        body = wire.iter_body(sock, head, data)
        if head.status != 200:
            wire.judge(head.status, b"".join(body))
        rest = b""
        for piece in body:
            *lines, rest = (rest + piece).split(b"\n")
            for text in lines:
                line = plainjson.decode_object(text)
                if line.get("kind") == "end":
                    return
                error = line.get("error")
                if isinstance(error, dict):
                    raise from_json(error)
                yield line
        raise wire.Cut("the answer breaks off")
    except wire.Cut as cut:
        next_step = f"see the daemon's log: {spelled(home, 'daemon', 'logs')}"
        raise Failed("compare", str(request.get("one")), str(cut), next_step) from cut
    finally:
        sock.close()


class ChangeCalls:
    """Use Client.changes."""

    def __init__(self, home: str) -> None:
        """`home`: its real path."""
        self._home = home

    def diff(
        self,
        one: str,
        other: str | None = None,
        *,
        machine: bool = False,
        only: Sequence[str] = (),
        patch: bool = False,
    ) -> DiffResult:
        """What differs from `one` to `other`: branches, checkpoints or ids of captures; a branch with a live session
        means this session as it is now.

        Without `other`: of a branch, what it has changed of the machine (of its base); of a checkpoint, what has
        changed on its branch since. `machine`: what `one` has changed of the machine, whatever it is. `only`: absolute
        paths, at or below which it is wanted. `patch`: with the lines of text files. Raises UnknownName, UsageProblem.
        """
        found = DiffResult(files=[])
        for line in iter_diff(self._home, diff_request(one, other, machine=machine, only=only, patch=patch)):
            found.take(line)
        return found


def diff_request(one: str, other: str | None, *, machine: bool, only: Sequence[str], patch: bool) -> dict[str, object]:
    """The request. Raises UsageProblem."""
    names = {"one": parse_name(one), "other": None if other is None else parse_name(other)}
    return {**names, "machine": machine, "only": [as_json_text(path) for path in only], "patch": patch}
