"""The folder of a home with the journals of what was done to the machine's files."""

import os

from waypoint.linux.storage import filesystem
from waypoint.service.durable.home_shelves import JOURNALS
from waypoint.service.home import Home


def journals_of(home: Home) -> str:
    return str(home.path / JOURNALS)


def has_applied(home: Home) -> bool:
    """Whether anything was ever put onto the machine."""
    return os.path.isdir(journals_of(home))


def kept_bytes(home: Home) -> int:
    """Bytes on disk of all that was kept of the machine's files. Raises OSError."""
    return filesystem.used_bytes(journals_of(home)) if has_applied(home) else 0
