"""The codec of CRIU's messages, compared with bytes from Google's protobuf library."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waypoint.processes.criu import messages as criu_messages
from waypoint.processes.criu.messages import OPTIONS, REQUEST, RESPONSE, STATS, Field, Message, Value, decode, encode

DUMP_REQUEST: dict[str, Value] = {
    "type": 1,
    "opts": {
        "images_dir_fd": 7,
        "pid": 4242,
        "leave_running": True,
        "log_level": 1,
        "log_file": "dump.log",
        "work_dir_fd": -1,
        "ghost_limit": 64 << 20,
        "external": ["mnt[/]:m0", "mnt[/dev]:m1"],
        "freeze_cgroup": "/sys/fs/cgroup/x",
        "network_lock": 3,
    },
}
DUMP_REQUEST_BYTES = bytes.fromhex(
    "08011256080710922118014801520864756d702e6c6f678801ffffffffffffffffff01980280808020aa0209"
    "6d6e745b2f5d3a6d30aa020c6d6e745b2f6465765d3a6d31e202102f7379732f66732f6367726f75702f78800403"
)


def test_a_request_is_encoded_as_by_protobuf() -> None:
    assert encode(REQUEST, DUMP_REQUEST) == DUMP_REQUEST_BYTES
    assert decode(REQUEST, DUMP_REQUEST_BYTES) == DUMP_REQUEST


def test_a_notification_is_decoded() -> None:
    content = bytes.fromhex("080610012a140a1073657475702d6e616d65737061636573104d")
    assert decode(RESPONSE, content) == {
        "type": 6,
        "success": True,
        "notify": {"script": "setup-namespaces", "pid": 77},
    }


def test_a_refusal_is_decoded_without_unknown_fields() -> None:
    # `content` also has the field `dump`, which the codec does not know.
    content = bytes.fromhex(
        "080210001a020801220b08ffffffffffffffffff0138114a1d43616e277420666f726b20666f7220353a2046696c6520657869737473"
    )
    assert decode(RESPONSE, content) == {
        "type": 2,
        "success": False,
        "restore": {"pid": -1},
        "cr_errno": 17,
        "cr_errmsg": "Can't fork for 5: File exists",
    }


def test_fixed_size_fields_of_a_newer_criu_are_skipped() -> None:
    later = bytes.fromhex("81ff01") + b"8 bytes." + bytes.fromhex("85ff01") + b"four"
    assert decode(RESPONSE, later + b"\x08\x01") == {"type": 1}


def test_a_truncated_message_is_refused() -> None:
    readable = {}
    for end in range(1, len(DUMP_REQUEST_BYTES)):
        with contextlib.suppress(ValueError):
            readable[end] = decode(REQUEST, DUMP_REQUEST_BYTES[:end])
    assert readable == {2: {"type": 1}}  # only a cut right after the first field leaves a valid message


def test_bytes_that_are_not_a_message_are_refused() -> None:
    for content in (b"\x0b", b"\x08" + b"\xff" * 11, b"\x0a\x01a", b"\x12\x7f", b"\x48\x05"):
        with pytest.raises(ValueError, match=r"."):
            decode(RESPONSE, content)


@given(st.binary(max_size=60))
def test_any_bytes_give_values_or_a_value_error(content: bytes) -> None:
    try:
        assert isinstance(decode(RESPONSE, content), dict)
    except ValueError:
        return


def test_a_value_of_the_wrong_type_is_a_type_error() -> None:
    for name, value in (("pid", "7"), ("root", 7), ("external", "one")):
        with pytest.raises(TypeError):
            encode(OPTIONS, {name: value})
    with pytest.raises(TypeError):
        encode(REQUEST, {"opts": "x"})


def test_a_field_without_a_row_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="no_such_option"):
        encode(OPTIONS, {"no_such_option": 1})


def _values(message: Message) -> st.SearchStrategy[dict[str, Value]]:
    return st.fixed_dictionaries({}, optional={name: _value(field) for name, field in message.fields.items()})


def _value(field: Field) -> st.SearchStrategy[Value]:
    one: st.SearchStrategy[Value]
    match field.holds:
        case "int32":
            one = st.integers(-(1 << 31), (1 << 31) - 1)
        case "uint32":
            one = st.integers(0, (1 << 32) - 1)
        case "uint64":
            one = st.integers(0, (1 << 64) - 1)
        case "bool":
            one = st.booleans()
        case "string":
            one = st.text(st.characters(exclude_categories=["Cs"]))
        case inner:
            one = _values(inner)
    return st.lists(one, min_size=1) if field.repeated else one


@given(_values(REQUEST))
def test_decoding_reverses_encoding(values: dict[str, Value]) -> None:
    assert decode(REQUEST, encode(REQUEST, values)) == values


def test_no_two_fields_have_the_same_number() -> None:
    for message in (OPTIONS, REQUEST, RESPONSE, STATS, criu_messages.VERSION, criu_messages.FEATURES):
        numbers = [field.number for field in message.fields.values()]
        assert len(numbers) == len(set(numbers))


def test_paths_that_are_not_unicode_are_kept() -> None:
    name = b"/srv/\xff".decode(errors="surrogateescape")
    assert decode(OPTIONS, encode(OPTIONS, {"root": name})) == {"root": name}


def test_a_nested_number_is_replaced_and_the_rest_is_kept() -> None:
    inner = Message({"id": Field(6, "uint32"), "other": Field(7, "uint64")})
    outer = Message({"ids": Field(3, inner), "text": Field(13, "string"), "flag": Field(2, "bool")})
    values: dict[str, Value] = {"flag": True, "ids": {"id": 10, "other": 1 << 40}, "text": "kept"}
    changed = criu_messages.replace_number(encode(outer, values), (3, 6), 0x7FFFFFFF)
    assert decode(outer, changed) == {"flag": True, "ids": {"id": 0x7FFFFFFF, "other": 1 << 40}, "text": "kept"}
