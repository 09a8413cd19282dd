"""JSON for the fast path: uses the C module behind `json` directly (client/wire.py explains why)."""

import _json


class _Settings:
    """The attributes that `_json.make_scanner` reads, with the defaults of json.JSONDecoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


_scan = _json.make_scanner(_Settings())  # type: ignore[arg-type]  # typeshed expects a scanner; any object works


def encode(value: object) -> str:
    """`value` as one line of ASCII; a record (dataclass) becomes an object. Raises TypeError or ValueError for a value
    that JSON lacks, such as NaN.
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
    """Return the fields of a record (dataclass), by name."""
    names = getattr(record, "__dataclass_fields__", None)
    if names is None:
        raise TypeError(f"{type(record).__name__} has no form in JSON")
    return {name: getattr(record, name) for name in names}


def decode(data: bytes | str) -> object:
    """Return the value of a JSON text in UTF-8. Raises ValueError if it is not JSON."""
    text = (data if isinstance(data, str) else data.decode()).strip(" \t\r\n")
    try:
        value, end = _scan(text, 0)
    except StopIteration as stop:
        raise ValueError(f"not JSON at character {stop.value}") from None
    except SystemError:
        # Python 3.11's scanner can raise its own error only if json.decoder is loaded.
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError(f"more than one JSON value, from character {end}")
    return value


def decode_object(data: bytes | str) -> dict[str, object]:
    """Decode a JSON object like `decode`."""
    value = decode(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value
