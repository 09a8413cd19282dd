"""`--json` inside a session prints the same bytes as outside."""

import types
import typing
from typing import Any, Literal, NotRequired, Union, get_args, get_origin

import msgspec
import pytest

from waypoint.cli.output import error_value, json_line
from waypoint.client import results
from waypoint.model import plainjson
from waypoint.model.errors import UnknownName
from waypoint.model.facts import CaptureFacts, CheckpointFacts, ForkFacts, OperationFacts
from waypoint.model.session_facts import SessionFacts, StopFacts
from waypoint.service.inside.printed import Printed
from waypoint.terminal.inside.spool import refusal

KINDS = [CaptureFacts, CheckpointFacts, ForkFacts, OperationFacts, SessionFacts, StopFacts]
VALUES: dict[Any, Any] = {str: "über\x1b\u2028/<\N{ROCKET}", int: 1 << 40, float: 1e16, bool: True, type(None): None}


def value_of(hint: Any) -> Any:
    """Return a value of the type `hint`, with characters and numbers that JSON can write in several ways."""
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin is Literal:
            return arguments[0]
        case origin if origin in (Union, types.UnionType, NotRequired):
            return value_of(arguments[0])
        case origin if origin is list:
            return [value_of(arguments[0])] * 2
        case origin if origin is tuple:
            return tuple(map(value_of, arguments))
        case origin if origin is dict:
            return {value_of(arguments[0]): value_of(arguments[1])}
    return VALUES[hint] if hint in VALUES else hint(**{name: value_of(one) for name, one in hints_of(hint).items()})


def hints_of(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_facts_are_the_same_json_inside_and_outside(kind: type[Any]) -> None:
    facts = value_of(kind)
    sent = plainjson.decode(msgspec.json.encode(facts))  # as the daemon sends it
    assert Printed("", facts).as_json() == f"{json_line(sent)}\n"
    assert Printed("", [facts]).as_json() == f"{json_line([results.parse(kind, sent)])}\n"


def test_an_error_is_the_same_json_inside_and_outside() -> None:
    error = UnknownName("use", "'ü\x1b'", "it is nowhere", "try another")
    assert refusal(["show", "ü", "--json"], error).text == f"{json_line(error_value(error))}\n"
