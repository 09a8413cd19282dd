"""A route of the HTTP API: its method and path, its service function, and the types of its request and answer.

The types are read from the function's annotations once, when the table of routes is made.
"""

import inspect
import re
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from waypoint.model.requests import Request
from waypoint.service.shapes import Download, Peer, Stream, Upload

MAX_BODY_BYTES = 1 << 20
# As JSON, each line break and quote of an exec's text takes two bytes.
MAX_EXEC_TEXT_BYTES = 16 << 20
MAX_EXEC_BODY_BYTES = 2 * MAX_EXEC_TEXT_BYTES + 4096

Gives = Literal["record", "list", "download", "stream"]


class Signature(NamedTuple):
    """The parameters and the result of a service function. Its first parameter, the home, is not listed.

    `sources`: by parameter, the field of Call that is passed for it; `names` stands for the placeholder of the same
    name. `request`: the record type for the body of a POST or the query of a GET; None: the request has no fields.
    `gives`, `result`: the kind of answer and the type of its content; of a `list` the type of one item, of a `download`
    the type of one line, or None. `tells`: the function returns a pair of the content and whether something was made.
    """

    sources: dict[str, str]
    request: type[Request] | None
    gives: Gives
    result: Any
    tells: bool

    @property
    def uploads(self) -> bool:
        return "upload" in self.sources.values()


class Call(NamedTuple):
    """The arguments of a service function, from a request. `names`: the checked values of the path's placeholders."""

    names: dict[str, str]
    peer: Peer
    request: Request | None
    upload: AsyncIterator[bytes] | None
    routes: "Routes"


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One row of the table of routes.

    `path`: each part in braces is a placeholder; the function has a parameter of the same name. `wrap`: the answer is
    an object whose only member, of this name, is the function's result; "": the answer is the result. `created`: the
    answer's status is 201. `body_limit`: in bytes.
    """

    method: str
    path: str
    function: Callable[..., Awaitable[Any]]
    summary: str
    wrap: str = ""
    created: bool = False
    body_limit: int = MAX_BODY_BYTES
    pattern: re.Pattern[str] = field(init=False)
    signature: Signature = field(init=False)

    def __post_init__(self) -> None:
        # A request is matched against the regular expressions of all routes.
        pattern = re.compile("/".join(map(_part_pattern, self.path.split("/"))), re.DOTALL)
        object.__setattr__(self, "pattern", pattern)
        object.__setattr__(self, "signature", read_signature(self.function, self.placeholders))

    @property
    def placeholders(self) -> list[str]:
        return list(self.pattern.groupindex)

    def arguments(self, call: Call) -> dict[str, object]:
        """The arguments of the service function, without the home."""
        sources = self.signature.sources.items()
        return {name: call.names[name] if of == "names" else getattr(call, of) for name, of in sources}


Routes = tuple[Route, ...]


def _part_pattern(part: str) -> str:
    """The regular expression for one part of a path; for `{name}` a group of that name that matches any part."""
    return f"(?P<{part[1:-1]}>[^/]*)" if part.startswith("{") else re.escape(part)


def read_signature(function: Callable[..., Awaitable[Any]], names: Iterable[str]) -> Signature:
    """Read the signature of a service function. Raises TypeError if it does not fit a path with the placeholders
    `names`.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    gives, result, tells = _read_result(hints.pop("return"))
    _, *parameters = inspect.signature(function).parameters
    wanted = set(names)
    sources: dict[str, str] = {}
    request: type[Request] | None = None
    for name in parameters:
        hint = hints[name]
        if name in wanted:
            wanted.remove(name)
            sources[name] = "names"
        elif hint in _SOURCES:
            sources[name] = _SOURCES[hint]
        elif isinstance(hint, type) and issubclass(hint, Request):
            sources[name] = "request"
            request = hint
        else:
            raise TypeError(f"{function.__qualname__}: nothing in a request is a {hint} for {name!r}")
    if wanted:
        raise TypeError(f"{function.__qualname__} does not take {', '.join(sorted(wanted))}, which its path has")
    return Signature(sources, request, gives, result, tells)


def _read_result(hint: object) -> tuple[Gives, Any, bool]:
    if hint == Stream:
        return "stream", None, False
    if hint is Download:
        return "download", None, False
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated and parts[0] is Download:
        return "download", parts[1], False
    if origin is Iterator:  # Pages
        (item,) = typing.get_args(parts[0])
        return "list", item, False
    if origin is tuple:
        return "record", parts[0], True
    return "record", hint, False


_SOURCES: dict[Any, str] = {Peer: "peer", Upload: "upload", Routes: "routes"}
