"""The messages of CRIU's RPC as tables, and an encoder and decoder of protocol buffers for them.

CRIU's source defines the messages in `images/rpc.proto` (proto2). The tables have only the fields that Waypoint sends
or reads; other fields, such as those of a newer CRIU, are skipped when decoding.

Why no protobuf library is used: docs/criu.md, "Talking to CRIU". Wire format: protobuf.dev, "Encoding".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

ScalarKind = Literal["int32", "uint32", "uint64", "bool", "string"]
Value = int | str | list["Value"] | dict[str, "Value"]

_VARINT, _BYTES = 0, 2  # wire types
_MAX_VARINT_BYTES = 10
_MASK_64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Message:
    """A type of message: its fields by name."""

    fields: Mapping[str, "Field"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its number on the wire, and the type of its values (enums are int32)."""

    number: int
    holds: "ScalarKind | Message"
    repeated: bool = False


OPTIONS = Message(
    {
        "images_dir_fd": Field(1, "int32"),
        "pid": Field(2, "int32"),
        "leave_running": Field(3, "bool"),
        "ext_unix_sk": Field(4, "bool"),
        "tcp_established": Field(5, "bool"),
        "file_locks": Field(8, "bool"),
        "log_level": Field(9, "int32"),
        "log_file": Field(10, "string"),
        "notify_scripts": Field(12, "bool"),
        "root": Field(13, "string"),
        "work_dir_fd": Field(17, "int32"),
        "link_remap": Field(18, "bool"),
        "manage_cgroups_mode": Field(34, "int32"),
        "ghost_limit": Field(35, "uint32"),
        "external": Field(37, "string", repeated=True),
        "empty_ns": Field(38, "uint32"),
        "freeze_cgroup": Field(44, "string"),
        "timeout": Field(45, "uint32"),
        "tcp_skip_in_flight": Field(46, "bool"),
        "tcp_close": Field(52, "bool"),
        "network_lock": Field(64, "int32"),
    }
)

FEATURES = Message({"mem_track": Field(1, "bool"), "lazy_pages": Field(2, "bool")})

REQUEST = Message(
    {
        "type": Field(1, "int32"),
        "opts": Field(2, OPTIONS),
        "notify_success": Field(3, "bool"),
        "features": Field(5, FEATURES),
    }
)

VERSION = Message(
    {
        "major_number": Field(1, "int32"),
        "minor_number": Field(2, "int32"),
        "gitid": Field(3, "string"),
        "sublevel": Field(4, "int32"),
    }
)

RESPONSE = Message(
    {
        "type": Field(1, "int32"),
        "success": Field(2, "bool"),
        "restore": Field(4, Message({"pid": Field(1, "int32")})),
        "notify": Field(5, Message({"script": Field(1, "string"), "pid": Field(2, "int32")})),
        "cr_errno": Field(7, "int32"),
        "features": Field(8, FEATURES),
        "cr_errmsg": Field(9, "string"),
        "version": Field(10, VERSION),
    }
)

# images/stats.proto: the content of the file stats-dump.
DUMP_STATS = Message({"frozen_time": Field(2, "uint32")})
STATS = Message({"dump": Field(1, DUMP_STATS)})

# images/file-lock.proto
LOCK_ENTRY = Message(
    {
        "flag": Field(1, "uint32"),
        "type": Field(2, "uint32"),
        "pid": Field(3, "int32"),
        "fd": Field(4, "int32"),
        "start": Field(5, "uint64"),
        "len": Field(6, "uint64"),
    }
)
# images/fh.proto: an entry of irmap-cache.
IRMAP_ENTRY = Message({"dev": Field(1, "uint32"), "inode": Field(2, "uint64"), "path": Field(3, "string")})


class RequestType(IntEnum):
    """criu_req_type of rpc.proto."""

    DUMP = 1
    RESTORE = 2
    NOTIFY = 6
    FEATURE_CHECK = 9
    VERSION = 10


CGROUPS_IGNORE = 0  # criu_cg_mode
EMPTY_NETWORK = 0x40000000  # CLONE_NEWNET
NETWORK_LOCK_SKIP = 3  # criu_network_lock_method


def encode(message: Message, values: Mapping[str, Value]) -> bytes:
    """Encode `values`, by field name, in their order. Raises KeyError or TypeError for values that do not fit."""
    return b"".join(_encode_field(message.fields[name], value) for name, value in values.items())


def decode(message: Message, content: bytes) -> dict[str, Value]:
    """The values in `content` by field name, without missing fields. Raises ValueError for another type of message."""
    by_number = {field.number: (name, field) for name, field in message.fields.items()}
    values: dict[str, Value] = {}
    for number, raw in _iter_fields(content):
        if number not in by_number:
            continue
        name, field = by_number[number]
        value = _decode_value(field.holds, raw)
        if field.repeated:
            collected = values.setdefault(name, [])
            assert isinstance(collected, list)
            collected.append(value)
        else:
            values[name] = value
    return values


def replace_number(content: bytes, path: tuple[int, ...], number: int) -> bytes:
    """A copy of the message `content` in which the field at `path` (field numbers, from outside in) has the value
    `number`. The message must not have fixed-width numbers. Raises ValueError if `content` is not a message.
    """
    parts = []
    for place, raw in _iter_fields(content):
        if place == path[0]:
            raw = number if len(path) == 1 or isinstance(raw, int) else replace_number(raw, path[1:], number)
        parts.append(_raw_field(place, raw))
    return b"".join(parts)


def change_fields(content: bytes, changes: Mapping[int, int | bytes | None], within: int | None = None) -> bytes:
    """A copy of the message `content` in which the fields with the numbers in `changes` have these values, or are
    missing (None). All other fields are kept; none may be a fixed-width number. `within`: the number of the field whose
    message is changed instead. Raises ValueError if `content` is not a message.
    """
    if within is not None:
        inner = {place: raw for place, raw in _iter_fields(content) if place == within and isinstance(raw, bytes)}
        return change_fields(content, {place: change_fields(raw, changes) for place, raw in inner.items()})
    fields = [field for field in _iter_fields(content) if field[0] not in changes]
    fields += [(number, value) for number, value in changes.items() if value is not None]
    return b"".join(_raw_field(number, value) for number, value in fields)


def _raw_field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _encode_field(field: Field, value: Value) -> bytes:
    if field.repeated:
        if not isinstance(value, list):
            raise TypeError(f"field {field.number} takes a list")
        return b"".join(_encode_value(field, item) for item in value)
    return _encode_value(field, value)


def _encode_value(field: Field, value: Value) -> bytes:
    match field.holds, value:
        case Message() as inner, dict():
            body = encode(inner, value)
        case "string", str():
            body = value.encode(errors="surrogateescape")
        case "int32" | "uint32" | "uint64" | "bool", int():
            # Negative numbers are encoded as 64 bits in two's complement, also in an int32 field.
            return _varint(field.number << 3 | _VARINT) + _varint(value & _MASK_64)
        case _:
            raise TypeError(f"field {field.number} does not take {value!r}")
    return _varint(field.number << 3 | _BYTES) + _varint(len(body)) + body


def _decode_value(holds: ScalarKind | Message, raw: int | bytes) -> Value:
    match holds, raw:
        case Message(), bytes():
            return decode(holds, raw)
        case "string", bytes():
            return raw.decode(errors="surrogateescape")
        case "bool", int():
            return bool(raw)
        case "int32", int():
            low = raw & 0xFFFFFFFF
            return low - (1 << 32) if low >> 31 else low
        case "uint32", int():
            return raw & 0xFFFFFFFF
        case "uint64", int():
            return raw
        case _:
            raise ValueError(f"expected {holds if isinstance(holds, str) else 'a message'}, found {raw!r}")


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _iter_fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number and raw value of each field: an int for a varint, bytes for all other wire types."""
    place = 0
    while place < len(content):
        key, place = _read_varint(content, place)
        size = 0
        match key & 7:
            case 0:
                number, place = _read_varint(content, place)
                yield key >> 3, number
                continue
            case 1:
                size = 8
            case 2:
                size, place = _read_varint(content, place)
            case 5:
                size = 4
            case wire_type:
                raise ValueError(f"unknown wire type {wire_type} at byte {place}")
        if place + size > len(content):
            raise ValueError(f"field {key >> 3} is cut short")
        yield key >> 3, content[place : place + size]
        place += size


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    number = 0
    for shift in range(_MAX_VARINT_BYTES):
        if place >= len(content):
            raise ValueError("a number is cut short")
        byte = content[place]
        place += 1
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return number & _MASK_64, place
    raise ValueError(f"a number has more than {_MAX_VARINT_BYTES} bytes")
