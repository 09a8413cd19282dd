"""Ids: random, 128 bits, lower-case hex."""

import re
import secrets

ID_HEX_DIGITS = 32
MIN_PREFIX = 4
_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},{ID_HEX_DIGITS}}}")


def new_id() -> str:
    return secrets.token_hex(ID_HEX_DIGITS // 2)


def is_id(text: str) -> bool:
    return len(text) == ID_HEX_DIGITS and is_id_prefix(text)


def is_id_prefix(text: str) -> bool:
    """True if `text` could be an abbreviated id: hex digits, at least MIN_PREFIX of them."""
    return _PREFIX.fullmatch(text) is not None
