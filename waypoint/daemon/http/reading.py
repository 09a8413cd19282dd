"""Parsing a request strictly, without I/O: its route, the names in its path, and its fields as a typed record."""

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
    """The request record of a route whose function takes no fields: an empty JSON object, or no body."""


class Target(NamedTuple):
    """The target of a request. `names`: the values of the route's placeholders. `on`: the method and the path without
    the query, for messages.
    """

    route: Route
    names: dict[str, str]
    query: str
    on: str


def find_route(routes: Routes, method: bytes, target: bytes) -> Target:
    """Find the route for `method` and the request target (RFC 9112, origin or absolute form).

    Raises HttpProblem (404, 405); UsageProblem if the value of a placeholder is not a legal name.
    """
    text = target.decode("ascii", "replace")
    if text.startswith("http://"):
        text = "/" + text[len("http://") :].partition("/")[2]
    path, _, query = text.partition("?")
    verb = method.decode("ascii", "replace")
    on = f"{verb} {path}"
    for route in routes:
        if route.method == verb and (found := route.pattern.fullmatch(path)):
            names = {name: parse_name(_decoded(part, on)) for name, part in found.groupdict().items()}
            return Target(route, names, query, on)
    others = [route.method for route in routes if route.pattern.fullmatch(path)]
    if not others:
        raise HttpProblem(404, "there is no such path", _SEE, on)
    raise HttpProblem(405, f"this path takes {' or '.join(others)}", _SEE, on)


def _decoded(text: str, on: str) -> str:
    """Undo percent-encoding (RFC 3986). Raises HttpProblem for a `%` without two hex digits and for bytes that are not
    UTF-8.
    """
    first, *others = text.split("%")
    data = first.encode()
    for other in others:
        # bytes.fromhex would also accept white space.
        if not set(other[:2]) <= set("0123456789abcdefABCDEF") or len(other) < 2:
            raise HttpProblem(400, "'%' must be followed by two hexadecimal digits", on=on)
        data += bytes.fromhex(other[:2]) + other[2:].encode()
    with contextlib.suppress(UnicodeDecodeError):
        return data.decode()
    raise HttpProblem(400, "percent-encoded text must be UTF-8", on=on)


def parse_branch(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The branch in the header Waypoint-Branch: the one that the client works on. None without this header. Raises
    UsageProblem if it is not a legal name.
    """
    named = next((value for name, value in headers if name == BRANCH_HEADER), None)
    return None if named is None else parse_name(named.decode("ascii", "replace"))


def parse_query(target: Target) -> Request | None:
    """Parse the query of a GET request into the route's request record. Raises UsageProblem."""
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
    """Parse the JSON body of a POST request into the route's request record; no body means `{}`. Raises
    UsageProblem.
    """
    if target.query:
        raise _unreadable(target.on, "a POST has no query")
    try:
        request: Request = msgspec.json.decode(body or b"{}", type=target.route.signature.request or Nothing)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(target.on, str(error)) from None
    # The decoder refuses a raw NUL, so only an escaped NUL must be searched for.
    if b"\\u0000" in body and _holds_nul(msgspec.to_builtins(request)):
        raise _unreadable(target.on, "it contains a NUL character, which arguments, paths and variables cannot have")
    if isinstance(request, ExecRequest) and len(request.text.encode()) > MAX_EXEC_TEXT_BYTES:
        raise _unreadable(target.on, f"the text may have at most {MAX_EXEC_TEXT_BYTES} bytes")
    return request


def parse_request(target: Target, body: bytes) -> Request | None:
    """Parse the query of a GET or the body of a POST. Raises UsageProblem, also for a GET with a body."""
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
