"""Times as text, as answers and events contain them."""

from datetime import UTC, datetime


def iso_time(seconds: float) -> str:
    """`seconds` since the epoch as text: ISO 8601, UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_age(text: str) -> float | None:
    """Return the seconds in an age such as `90s`, `12h` or `1.5d`. Without a unit, only 0 is accepted. None: `text` is
    not an age.
    """
    number, unit = (text[:-1], _UNIT_S[text[-1]]) if text[-1:] in _UNIT_S else (text, 0)
    whole = number.replace(".", "", 1)
    if not whole.isdecimal() or not whole.isascii() or (not unit and float(number)):
        return None
    return float(number) * unit
