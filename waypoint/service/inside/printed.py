"""The output of a command inside a session."""

from collections.abc import Iterable
from typing import NamedTuple

from waypoint.model import plainjson


class Printed(NamedTuple):
    """`text`: for people. `value`: for `--json`, the same as outside of a session."""

    text: str
    value: object = None

    def as_json(self) -> str:
        """The value as one line of JSON."""
        return f"{plainjson.encode(self.value)}\n"


def as_text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
