"""NAME:PATH, a file of a capture or session, told from a path of the machine."""

from typing import NamedTuple

from waypoint.model.errors import UsageProblem
from waypoint.model.names import parse_name


class FileSide(NamedTuple):
    """`path` of `name`, which is legal as the name of a branch or capture."""

    name: str
    path: str


def side_of(text: str) -> FileSide | str:
    """The file that `text` names; `text` itself if it is a path of the machine: no NAME begins with `/` or `.`."""
    name, colon, path = text.partition(":")
    if not colon or name[:1] in ("", "/", "."):
        return text
    try:
        return FileSide(parse_name(name), path)
    except UsageProblem:
        return text
