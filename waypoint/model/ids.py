"""Ids, in lower-case hex. Of captures and sessions: 128 random bits. Of images: 256 bits, which their content decides.
Users may abbreviate an id.
"""

import os

from waypoint.model.late_pattern import late_pattern

ID_HEX_DIGITS = 32
IMAGE_HEX_DIGITS = 64
MIN_PREFIX = 4
_PREFIX = late_pattern(rf"[0-9a-f]{{{MIN_PREFIX},{IMAGE_HEX_DIGITS}}}")


def new_id() -> str:
    """A new random id."""
    return random_hex(ID_HEX_DIGITS // 2)


def random_hex(size: int) -> str:
    """`size` random bytes in lower-case hex, as those of `secrets.token_hex`, whose import takes the daemon 8 ms."""
    return os.urandom(size).hex()


def is_id(text: str) -> bool:
    """True if `text` has the form of a whole id."""
    return len(text) == ID_HEX_DIGITS and is_id_prefix(text)


def is_image_id(text: str) -> bool:
    """True if `text` has the form of a whole id of an image."""
    return len(text) == IMAGE_HEX_DIGITS and is_id_prefix(text)


def is_id_prefix(text: str) -> bool:
    """True if `text` could be a whole or abbreviated id of a capture or an image: MIN_PREFIX to IMAGE_HEX_DIGITS
    lower-case hex digits.
    """
    return _PREFIX.fullmatch(text) is not None
