"""What a command inside a session prints."""

from typing import NamedTuple

from waypoint.model import plainjson


class Printed(NamedTuple):
    """`text`: for people. `value`: what `--json` prints, the same as outside of a session."""

    text: str
    value: object = None

    def as_json(self) -> str:
        """The value as one line of JSON."""
        return f"{plainjson.encode(self.value)}\n"
