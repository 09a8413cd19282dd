"""plainjson gives the same values as the json module."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.places import ROOT
from waypoint.model import plainjson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_the_json_module_decodes_what_plainjson_encodes(value: object) -> None:
    assert json.loads(plainjson.encode(value)) == value


@given(VALUES)
def test_plainjson_decodes_what_the_json_module_encodes(value: object) -> None:
    assert plainjson.decode(json.dumps(value, indent=1)) == value
    assert plainjson.decode(json.dumps(value).encode()) == value


@pytest.mark.parametrize("text", ["", "{", '{"a":', "nul", "1 2", '{"a" 1}', b"\xff", b'"\xff"', "[1,]"])
def test_text_that_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        plainjson.decode(text)


@pytest.mark.parametrize("text", ["", "{", '{"a":', "[1,]"])
def test_text_that_is_not_json_is_refused_without_the_json_module(text: str) -> None:
    """Without the json module, Python's scanner raises other errors."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from waypoint.model import plainjson
assert "json" not in sys.modules
try:
    plainjson.decode({text!r})
except ValueError as error:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"x", {1: object()}])
def test_values_without_a_json_form_are_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        plainjson.encode(value)


@pytest.mark.parametrize("text", ["[]", "1", "null", '"x"'])
def test_decode_object_refuses_other_values(text: str) -> None:
    with pytest.raises(ValueError, match="expected a JSON object"):
        plainjson.decode_object(text)
