"""Hypothesis strategies: requests of hostile clients, and run folders of hostile sessions.

WAYPOINT_TEST_FUZZ sets the number of examples of each test.
"""

import json
import os
from typing import NamedTuple

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from waypoint.daemon.http.route import Route

COUNT = int(os.environ.get("WAYPOINT_TEST_FUZZ", "0"))

FRAMINGS = ("length", "chunked", "no-length", "short", "long", "negative", "huge", "twice", "both", "cut", "tiny")
ILLEGAL_NAMES = ["", "..", "a/../b", "%", "%zz", "%00", "%2e%2e", "a%2Fb%2F", "x" * 101, "%ff", "é", "a\x7fb", "~"]
NUMBERS = [0, -1, 2**31, 2**63, 2**64, -(2**64), 10**400, 1.5, 1e308, -0.0]
TEXTS = ["", "\0", "a\nb", "\u202e", "\x1b[31m", "é" * 50, "x" * 5000, "/", "../../etc/passwd", "None", "2e9", "💥"]
HEADERS = [
    "Host: w",
    "Host: w\r\nHost: v",
    "X: " + "y" * 9000,
    "Waypoint-Branch: evil",
    "Waypoint-Branch: ../..",
    "Waypoint-Branch: " + "z" * 500,
    "Connection: close",
    "Connection: Upgrade\r\nUpgrade: waypoint-stream",
    "Connection: Upgrade\r\nUpgrade: websocket",
    "Upgrade: waypoint-stream",
    "Expect: 100-continue",
    "Transfer-Encoding: gzip",
    "Content-Type: text/xml",
    " folded: line",
    "no colon",
    "X\0: y",
]
NO_RECORDS = [b"", b"{", b"[" * 5000, b"null", b"\xff\xfe", b'{"a":1}{', b'"\\ud800"', b"{}" * 9]
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.text(max_size=20)),
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(st.text(max_size=5), below, max_size=3)),
    max_leaves=8,
)


def bounded(examples: int) -> settings:
    """Return Hypothesis settings with WAYPOINT_TEST_FUZZ examples, or `examples` if the variable is not set."""
    return settings(
        max_examples=COUNT or examples,
        deadline=None,
        derandomize=settings().derandomize and not COUNT,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


class FuzzRequest(NamedTuple):
    """A request to send. `is_whole`: the server can see where the request ends, so it must answer."""

    data: bytes
    is_whole: bool
    shown: str


@st.composite
def requests(draw: st.DrawFn, routes: tuple[Route, ...], names: list[str]) -> FuzzRequest:
    """Draw a request for one of `routes` with any number of faults. `names`: legal names for its path."""
    route = draw(st.sampled_from(routes))
    path = route.path
    for placeholder in route.placeholders:
        path = path.replace(f"{{{placeholder}}}", draw(st.sampled_from(names + ILLEGAL_NAMES)))
    path += draw(st.sampled_from(["", "", "", "?", "?all=1", "?limit=18446744073709551616", "?x=1&x=2", "?a=%zz", "/"]))
    method = draw(st.sampled_from([route.method] * 6 + ["GET", "POST", "DELETE", "get", "G\0T"]))
    headers = draw(st.lists(st.sampled_from(HEADERS), max_size=2))
    if draw(st.integers(0, 5)):
        headers = ["Host: w", *(one for one in headers if not one.startswith("Host"))]
    body = draw(_bodies(route)) if method != "GET" or not draw(st.integers(0, 3)) else b""
    framing = draw(st.sampled_from(("length",) * 8 + FRAMINGS))
    version = draw(st.sampled_from(["1.1"] * 9 + ["1.0", "2.0", "9"]))
    head = "".join(f"{line}\r\n" for line in headers)
    fields, content = _framed(body, framing)
    data = f"{method} {path} HTTP/{version}\r\n{head}{fields}\r\n".encode(errors="replace") + content
    return FuzzRequest(
        data, framing in ("length", "chunked", "tiny"), f"{method} {path} {framing} {headers} {body[:300]!r}"
    )


@st.composite
def _bodies(draw: st.DrawFn, route: Route) -> bytes:
    if not draw(st.integers(0, 7)):
        return draw(st.sampled_from(NO_RECORDS))
    record: dict[str, object] = {}
    if route.signature.request is not None:
        for field in msgspec.structs.fields(route.signature.request):
            if draw(st.booleans()):
                record[field.encode_name] = draw(st.one_of(VALUES, st.sampled_from(["evil", "nosuch", 1, True, []])))
    if not draw(st.integers(0, 5)):
        record["unknown"] = draw(VALUES)
    return json.dumps(record).encode()


def _framed(body: bytes, framing: str) -> tuple[str, bytes]:
    """Return the headers that frame `body`, and the body as it is sent."""
    size = len(body)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:3], body[3:]) if part) + b"0\r\n\r\n"
    tiny = b"".join(b"1\r\n%c\r\n" % one for one in body) + b"0\r\n\r\n"
    contents = {"chunked": chunks, "tiny": tiny, "cut": chunks[:-4] + b"zz\r\n", "both": chunks}
    lengths = {"short": max(0, size - 2), "long": size + 9, "negative": -1, "huge": 2**64}
    length, coding = f"Content-Length: {lengths.get(framing, size)}\r\n", "Transfer-Encoding: chunked\r\n"
    fields = {"no-length": "", "twice": f"{length}Content-Length: {size + 1}\r\n", "both": length + coding}
    fields |= dict.fromkeys(("chunked", "tiny", "cut"), coding)
    return fields.get(framing, length), contents.get(framing, body)


# --- the run folder of a session

FOLDER_NAMES = [
    *("nonce", "req", "go", "branch", "state", "state.0", "back", "told", "exit", "exit.new", "bell", "run.0"),
    *("last.0", "last.1", "hist.0", "hist.1", "history"),
    *("r.1.1", "w.1.1", "c.1.1", "a.1.1", "r.2.1", "a.2.1", "r.9999999999.9999", "t.1.1", "cmd.0", "in.0"),
    *(".waypoint-req", "r.", "r.x", "r.1", "é", "x" * 255),
]
FOLDER_KINDS = ["file", "huge", "link", "loop", "fifo", "folder", "full", "socket", "gone", "hard", "no-rights"]
CONTENTS = [
    *(b"", b"\0", b"\n", b"ps\n", b"ps\n--json\n", b"log\n-n\n18446744073709551616\n", b"undo\n99999999999999999999\n"),
    *(b"checkpoint\n\xff\xfe\n", b"show\n" + b"a" * 5000, b"\n" * 4096, b"restore\n../..\n", b"fork\ngood\nx\n"),
    *(b"__complete\n", b"checkpoint\nname\n-m\n\xff\n--tier\nfiles\n", b"--json", b"op\nlog\n-n\n-1\n", b"exec 0 0\n"),
    *(b"\0s\x001\0bash\x000\0d\0\0\0/\0m\0\0\x000022\0h\0\0\0hist.0\0e\x001\0\0\0", b"\0s\x002\0zsh\x00"),
    *(b"d / \0\0\0", b"999999999999", b"-1", b"S 0\nE 0\nE+ 0\n", b"\x1b]7717;P;1;0;bash\x07"),
]
TARGETS = ["/etc/passwd", "/proc/self/mem", "/dev/zero", "bell", "..", "/proc/1/fd/3", "x" * 4000]


class Entry(NamedTuple):
    """One entry of a run folder. `content` is that of a file, `target` that of a link."""

    name: str
    kind: str
    content: bytes
    target: str


FOLDERS = st.lists(
    st.builds(
        Entry,
        st.sampled_from(FOLDER_NAMES),
        st.sampled_from(FOLDER_KINDS),
        st.one_of(st.sampled_from(CONTENTS), st.binary(max_size=40)),
        st.sampled_from(TARGETS),
    ),
    min_size=1,
    max_size=6,
)
