"""Resources: sessions, captures, and the scrollback of a session's terminal."""

from collections import deque
from collections.abc import Callable, Iterator
from urllib.parse import quote, unquote

from waypoint.agents.guide import guide
from waypoint.agents.mcp.results import capture_of, state_of
from waypoint.agents.mcp.toolbox import plain
from waypoint.client import Client
from waypoint.model import plainjson
from waypoint.model.errors import UnknownName
from waypoint.model.names import parse_name

SCHEME = "waypoint://"
SCROLLBACK_BYTES = 64 << 10
MOST_CAPTURES = 200
_JSON, _TEXT = "application/json", "text/plain"
TEMPLATES: list[dict[str, object]] = [
    {"uriTemplate": f"{SCHEME}sessions/{{branch}}", "name": "session", "mimeType": _JSON},
    {"uriTemplate": f"{SCHEME}captures/{{name}}", "name": "capture", "mimeType": _JSON},
    {
        "uriTemplate": f"{SCHEME}scrollback/{{branch}}",
        "name": "scrollback",
        "description": f"The last {SCROLLBACK_BYTES >> 10} KiB of the terminal's output.",
        "mimeType": _TEXT,
    },
]


def listed(client: Client) -> list[dict[str, object]]:
    """The resources that exist now. Captures are many: only their list is shown here."""
    found: list[dict[str, object]] = [
        {"uri": f"{SCHEME}guide", "name": "guide", "description": "What to know about Waypoint.", "mimeType": _TEXT},
        {"uri": f"{SCHEME}sessions", "name": "sessions", "mimeType": _JSON},
        {"uri": f"{SCHEME}captures", "name": "captures", "mimeType": _JSON},
    ]
    for one in client.sessions():
        path = quote(one.branch, safe="")
        found += [
            {"uri": f"{SCHEME}sessions/{path}", "name": f"session {one.branch}", "mimeType": _JSON},
            {"uri": f"{SCHEME}scrollback/{path}", "name": f"scrollback of {one.branch}", "mimeType": _TEXT},
        ]
    return found


def read(client: Client, uri: str) -> dict[str, str]:
    """The content of a resource. Raises UnknownName."""
    kind, _, rest = uri.removeprefix(SCHEME).partition("/")
    name = parse_name(unquote(rest)) if rest else None
    reader = _READERS.get((kind, name is not None)) if uri.startswith(SCHEME) else None
    if reader is None:
        raise UnknownName("read", f"the resource {uri[:100]}", "there is none", "see resources/list")
    return reader(client, name or "")


def _json(value: object) -> dict[str, str]:
    return {"mimeType": _JSON, "text": plainjson.encode(plain(value))}


def _scrollback(client: Client, branch: str) -> dict[str, str]:
    text = b"".join(_last(client.session(branch).logs(), SCROLLBACK_BYTES)).decode(errors="replace")
    return {"mimeType": _TEXT, "text": text}


def _last(pieces: Iterator[bytes], size: int) -> list[bytes]:
    """The last pieces, cut to `size` bytes in all."""
    kept: deque[bytes] = deque()
    total = 0
    for piece in pieces:
        kept.append(piece)
        total += len(piece)
        while total - len(kept[0]) >= size:
            total -= len(kept.popleft())
    if kept:
        kept[0] = kept[0][max(total - size, 0) :]
    return list(kept)


_READERS: dict[tuple[str, bool], Callable[[Client, str], dict[str, str]]] = {
    ("guide", False): lambda client, _: {"mimeType": _TEXT, "text": guide("mcp")},
    ("sessions", False): lambda client, _: _json([state_of(one) for one in client.sessions(all=True)]),
    ("sessions", True): lambda client, branch: _json(client.session(branch).refresh()),
    ("captures", False): lambda client, _: _json(
        [capture_of(one) for one in client.history.log(all=True, limit=MOST_CAPTURES)]
    ),
    ("captures", True): lambda client, name: _json(client.history.show(name)),
    ("scrollback", True): _scrollback,
}
