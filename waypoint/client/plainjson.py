"""JSON through the C parts of the standard library's own module, without loading that module.

`import json` costs 8 ms, nearly all of it for `re`; the scanner and the encoder behind it are C and need none of it.
"""

import _json


class _Settings:
    """What `_json.make_scanner` reads from its context; the values are json.JSONDecoder's defaults."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_scan = _json.make_scanner(_Settings())  # type: ignore[arg-type]  # typeshed asks for a scanner; any object serves


def encode(value: object) -> str:
    """One line of ASCII. Raises TypeError or ValueError for what JSON cannot hold (NaN among it)."""
    encoder = _json.make_encoder(
        markers={},
        default=_refuse,
        encoder=_json.encode_basestring_ascii,
        indent=None,
        key_separator=": ",
        item_separator=", ",
        sort_keys=False,
        skipkeys=False,
        allow_nan=False,
    )
    return "".join(encoder(value, 0))


def decode(data: bytes | str) -> object:
    """The value of a whole JSON text (UTF-8, with white space around it). Raises ValueError if it is none."""
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
    """As `decode`, for a text that must be one JSON object."""
    value = decode(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value
