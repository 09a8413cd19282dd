"""Ids of captures and sessions: 128 random bits in lower-case hex. Users may abbreviate an id."""

import os
import re

ID_HEX_DIGITS = 32
MIN_PREFIX = 4
ID_PATTERN = rf"^[0-9a-f]{{{ID_HEX_DIGITS}}}(?![\s\S])"  # "$" would also match before a newline at the end
_IMAGE_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},64}}")
_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},{ID_HEX_DIGITS}}}")


def new_id() -> str:
    """Return a new random id."""
    return random_hex(ID_HEX_DIGITS // 2)


def random_hex(size: int) -> str:
    """`size` random bytes in lower-case hex, like `secrets.token_hex`, whose import would take 8 ms."""
    return os.urandom(size).hex()


def is_id(text: str) -> bool:
    """Return True if `text` has the form of a whole id."""
    return len(text) == ID_HEX_DIGITS and is_id_prefix(text)


def is_image_prefix(text: str) -> bool:
    """Return True if `text` could be a whole or abbreviated id of an image: a SHA-256 in lower-case hex digits."""
    return _IMAGE_PREFIX.fullmatch(text) is not None


def is_id_prefix(text: str) -> bool:
    """Return True if `text` could be a whole or abbreviated id: MIN_PREFIX to ID_HEX_DIGITS lower-case hex digits."""
    return _PREFIX.fullmatch(text) is not None
