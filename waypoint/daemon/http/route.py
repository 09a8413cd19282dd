"""One route of the control interface: where it is, the service function behind it, and what that takes and gives.

What a route takes and gives is read from the function's annotations, once, when the table of routes is made.
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
    """A service function's parameters behind the first, which is the home, and its result.

    `sources`: per parameter the field of Call that it gets, or `names` for the placeholder of its name.
    `request`: the record that the body of a POST, or the query of a GET, becomes; None: neither may be given.
    `result`: the type of the answer's content; of a `list` that of one item, of a `download` that of one of its lines,
    or None. `tells`: the result is a pair, the second part of which says whether something was made.
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
    """One request, ready for its service function. `names`: what stands in the path for the placeholders, checked."""

    names: dict[str, str]
    peer: Peer
    request: Request | None
    upload: AsyncIterator[bytes] | None
    routes: "Routes"


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One row of the table.

    `path`: parts in braces are placeholders, which the function has as parameters of the same name. `wrap`: the name of
    the one member of the answer that has the function's result; empty: the result is the answer. `created`: the answer
    is 201. `body_limit`: bytes.
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
        # One regular expression a route: a request is compared with all of them.
        pattern = re.compile("/".join(map(_part_pattern, self.path.split("/"))), re.DOTALL)
        object.__setattr__(self, "pattern", pattern)
        object.__setattr__(self, "signature", read_signature(self.function, self.placeholders))

    @property
    def placeholders(self) -> list[str]:
        return list(self.pattern.groupindex)

    def arguments(self, call: Call) -> dict[str, object]:
        """What the service function gets besides the home."""
        sources = self.signature.sources.items()
        return {name: call.names[name] if of == "names" else getattr(call, of) for name, of in sources}


Routes = tuple[Route, ...]


def _part_pattern(part: str) -> str:
    """`part` of a path as a regular expression: `{name}` is a group of that name, which takes any one part."""
    return f"(?P<{part[1:-1]}>[^/]*)" if part.startswith("{") else re.escape(part)


def read_signature(function: Callable[..., Awaitable[Any]], names: Iterable[str]) -> Signature:
    """Raises TypeError if there is no way to call `function` for a path with the placeholders `names`."""
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
