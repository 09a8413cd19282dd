"""From the bytes of a request to a route, names and a typed record; strict, and without I/O."""

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from waypoint.daemon.http.problems import HttpProblem
from waypoint.daemon.http.route import MAX_EXEC_TEXT_BYTES, Route, Routes
from waypoint.model.errors import UsageProblem
from waypoint.model.names import parse_name
from waypoint.model.requests import ExecRequest, Request

BRANCH_HEADER = b"waypoint-branch"
_SEE = "GET /v1/openapi.json describes every request"


class Nothing(Request, frozen=True):
    """The record of a route whose function takes none: an empty object, or no body."""


class Target(NamedTuple):
    """`names`: what stands in the path for the route's placeholders. `on`: method and path, to name the request in
    messages; it never holds the query.
    """

    route: Route
    names: dict[str, str]
    query: str
    on: str


def find_route(routes: Routes, method: bytes, target: bytes) -> Target:
    """The route that `method` and the request target (RFC 9112, origin or absolute form) mean.

    Raises HttpProblem (404, 405) and UsageProblem for a placeholder whose text is no legal name.
    """
    text = target.decode("ascii", "replace")
    if text.startswith("http://"):
        text = "/" + text[len("http://") :].partition("/")[2]
    path, _, query = text.partition("?")
    verb = method.decode("ascii", "replace")
    on = f"{verb} {path}"
    parts = path.split("/")
    for route in routes:
        if route.method == verb and (found := route.match(parts)) is not None:
            names = {name: parse_name(_decoded(part, on)) for name, part in found.items()}
            return Target(route, names, query, on)
    others = [route.method for route in routes if route.match(parts) is not None]
    if not others:
        raise HttpProblem(404, "there is no such path", _SEE, on)
    raise HttpProblem(405, f"this path takes {' or '.join(others)}", _SEE, on)


def _decoded(text: str, on: str) -> str:
    """Undo percent-encoding (RFC 3986). A `%` without two hex digits behind it, and bytes that are not UTF-8, are
    refused.
    """
    first, *others = text.split("%")
    data = first.encode()
    for other in others:
        # fromhex alone would take white space for digits.
        if not set(other[:2]) <= set("0123456789abcdefABCDEF") or len(other) < 2:
            raise HttpProblem(400, "'%' must be followed by two hexadecimal digits", on=on)
        data += bytes.fromhex(other[:2]) + other[2:].encode()
    with contextlib.suppress(UnicodeDecodeError):
        return data.decode()
    raise HttpProblem(400, "percent-encoded text must be UTF-8", on=on)


def parse_branch(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The branch that the client works on, by the header Waypoint-Branch; None if it says none. Raises UsageProblem if
    that is no legal name.
    """
    named = next((value for name, value in headers if name == BRANCH_HEADER), None)
    return None if named is None else parse_name(named.decode("ascii", "replace"))


def parse_query(target: Target) -> Request | None:
    """The record that a GET takes, from its query; None if it takes none. Raises UsageProblem saying what is wrong."""
    fields: dict[str, str] = {}
    for pair in target.query.split("&") if target.query else ():
        name, _, value = pair.partition("=")
        if name in fields:
            raise _unreadable(target.on, f"the query has {name!r} twice")
        fields[name] = _decoded(value.replace("+", " "), target.on)
    try:
        request: Request = msgspec.convert(fields, target.route.signature.request or Nothing, strict=False)
    except msgspec.ValidationError as error:
        raise _unreadable(target.on, str(error)) from None
    return request


def parse_body(target: Target, body: bytes) -> Request | None:
    """The record that a POST takes, from its JSON body (none is `{}`). Raises UsageProblem saying what is wrong."""
    if target.query:
        raise _unreadable(target.on, "a POST has no query")
    try:
        request: Request = msgspec.json.decode(body or b"{}", type=target.route.signature.request or Nothing)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(target.on, str(error)) from None
    # No raw NUL gets through the decoder, so that the search for an escaped one is seldom needed.
    if b"\\u0000" in body and _holds_nul(msgspec.to_builtins(request)):
        raise _unreadable(target.on, "a text in it holds a NUL, which no argument, path or variable can")
    if isinstance(request, ExecRequest) and len(request.text.encode()) > MAX_EXEC_TEXT_BYTES:
        raise _unreadable(target.on, f"the text has at most {MAX_EXEC_TEXT_BYTES} bytes")
    return request


def parse_request(target: Target, body: bytes) -> Request | None:
    """As `parse_query` or `parse_body`, by the route's method. Raises UsageProblem for a GET with a body, too."""
    if target.route.method != "GET":
        return parse_body(target, body)
    if body:
        raise _unreadable(target.on, "a GET has no body")
    return parse_query(target)


def _holds_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(_holds_nul(part) for part in value)


def _unreadable(on: str, said: str) -> UsageProblem:
    return UsageProblem("read the request", on, said, _SEE)
