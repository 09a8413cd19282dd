"""From the bytes of a request to a route, a branch and a typed record; strict, and without I/O."""

import contextlib
from typing import NamedTuple

import msgspec

from waypoint.daemon.problems import HttpProblem
from waypoint.daemon.routes import MAX_EXEC_TEXT_BYTES, PLACEHOLDERS, ROUTES, Route
from waypoint.model.errors import UsageProblem
from waypoint.model.names import parse_name
from waypoint.model.requests import ExecRequest, Request

_SEE = "GET /v1/openapi.json describes every request"


class Target(NamedTuple):
    """`on`: method and path, to name the request in messages; it never holds the query."""

    route: Route
    branch: str
    query: str
    on: str


def find_route(method: bytes, target: bytes) -> Target:
    """The route that `method` and the request target (RFC 9112, origin or absolute form) mean.

    Raises HttpProblem (404, 405) and UsageProblem for a branch that is no legal name.
    """
    text = target.decode("ascii", "replace")
    if text.startswith("http://"):
        text = "/" + text[len("http://") :].partition("/")[2]
    path, _, query = text.partition("?")
    verb = method.decode("ascii", "replace")
    on = f"{verb} {path}"
    parts = path.split("/")
    same_path = [route for route in ROUTES if _fits(route, parts)]
    if not same_path:
        raise HttpProblem(404, "there is no such path", _SEE, on)
    for route in same_path:
        if route.method == verb:
            named = any(place in route.path for place in PLACEHOLDERS)
            branch = parse_name(_decoded(parts[3], on)) if named else ""
            return Target(route, branch, query, on)
    raise HttpProblem(405, f"this path takes {' or '.join(route.method for route in same_path)}", _SEE, on)


def _fits(route: Route, parts: list[str]) -> bool:
    wanted = route.path.split("/")
    return len(wanted) == len(parts) and all(
        want in (have, *PLACEHOLDERS) for want, have in zip(wanted, parts, strict=True)
    )


def _decoded(text: str, on: str) -> str:
    """Undo percent-encoding (RFC 3986), strictly: what it leaves open is refused instead of guessed."""
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


def parse_request(target: Target, body: bytes) -> Request:
    """The record that the route takes, from the query of a GET or the JSON body of a POST (none is `{}`).

    Raises UsageProblem saying what is wrong with it.
    """
    if target.route.method == "GET":
        if body:
            raise _unreadable(target.on, "a GET has no body")
        return _converted(target)
    if target.query:
        raise _unreadable(target.on, "a POST has no query")
    try:
        request: Request = msgspec.json.decode(body or b"{}", type=target.route.takes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(target.on, str(error)) from None
    # No raw NUL gets through the decoder, so that the search for an escaped one is seldom needed.
    if b"\\u0000" in body and _holds_nul(msgspec.to_builtins(request)):
        raise _unreadable(target.on, "a text in it holds a NUL, which no argument, path or variable can")
    if isinstance(request, ExecRequest) and len(request.text.encode()) > MAX_EXEC_TEXT_BYTES:
        raise _unreadable(target.on, f"the text has at most {MAX_EXEC_TEXT_BYTES} bytes")
    return request


def _converted(target: Target) -> Request:
    fields: dict[str, str] = {}
    for pair in target.query.split("&") if target.query else ():
        name, _, value = pair.partition("=")
        if name in fields:
            raise _unreadable(target.on, f"the query has {name!r} twice")
        fields[name] = _decoded(value.replace("+", " "), target.on)
    try:
        return msgspec.convert(fields, target.route.takes, strict=False)
    except msgspec.ValidationError as error:
        raise _unreadable(target.on, str(error)) from None


def _holds_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(_holds_nul(part) for part in value)


def _unreadable(on: str, said: str) -> UsageProblem:
    return UsageProblem("read the request", on, said, _SEE)
