"""The records of the answers, each of which is loaded when it is asked for."""

import ast
from pathlib import Path

import pytest

from waypoint.model import facts


def test_each_record_that_mypy_sees_is_there() -> None:
    seen = {
        (node.module, name.name)
        for node in ast.walk(ast.parse(Path(facts.__file__).read_text()))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert seen == {(f"waypoint.model.{module}", name) for module, names in facts.PLACES.items() for name in names}
    assert {(getattr(facts, name).__module__, name) for _, name in seen} == seen


def test_and_no_other() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NoFacts'"):
        _ = facts.NoFacts  # type: ignore[attr-defined]
