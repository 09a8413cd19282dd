"""JSON through the C parts of the standard library's own module, without loading that module.

`import json` takes 8 ms, nearly all of it to import `re`. The scanner and the encoder behind it are written in C and do
not need `re`.
"""

import _json


class _Settings:
    """The attributes that `_json.make_scanner` reads; the values are the defaults of json.JSONDecoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


_scan = _json.make_scanner(_Settings())  # type: ignore[arg-type]  # typeshed asks for a scanner; any object serves


def encode(value: object) -> str:
    """`value` as one line of ASCII; a record (dataclass) is an object with its fields.

    Raises TypeError or ValueError for a value that JSON does not have, as NaN.
    """
    encoder = _json.make_encoder(
        markers={},
        default=fields,
        encoder=_json.encode_basestring_ascii,
        indent=None,
        key_separator=": ",
        item_separator=", ",
        sort_keys=False,
        skipkeys=False,
        allow_nan=False,
    )
    return "".join(encoder(value, 0))


def fields(record: object) -> dict[str, object]:
    """The fields of a record (dataclass), by name. Raises TypeError if `record` is none."""
    names = getattr(record, "__dataclass_fields__", None)
    if names is None:
        raise TypeError(f"{type(record).__name__} has no form in JSON")
    return {name: getattr(record, name) for name in names}


def decode(data: bytes | str) -> object:
    """The value of a JSON text (UTF-8, with or without white space around it). Raises ValueError if it is not one."""
    text = (data if isinstance(data, str) else data.decode()).strip(" \t\r\n")
    try:
        value, end = _scan(text, 0)
    except StopIteration as stop:
        raise ValueError(f"not JSON at character {stop.value}") from None
    except SystemError:
        # Python 3.11's scanner raises its error only if json.decoder is loaded, and returns nothing at all otherwise.
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError(f"more than one JSON value, from character {end}")
    return value


def decode_object(data: bytes | str) -> dict[str, object]:
    """As `decode`, for a text that must be a JSON object. Raises ValueError if it is not."""
    value = decode(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value
