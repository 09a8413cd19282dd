"""`waypoint daemon logs`."""

import os
from collections import deque
from collections.abc import Iterable, Iterator

from waypoint.cli.output import write_all
from waypoint.client.address import find_home
from waypoint.model.errors import Failed, HostLacks, UsageProblem
from waypoint.model.paths import log_path, older_log_path, spelled
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError, OSError."""
    home, limit = find_home(given.text("home")), given.number("limit")
    older, newer = older_log_path(home), log_path(home)
    try:
        if given.flag("follow"):
            with open(newer, "rb") as file:
                lines = sum(1 for _ in file)
            left = None if limit is None else max(0, limit - lines)
            _print(_lines([older]), left)
            # `tail` waits for the kernel's notices, and goes on with the new file when the old one is renamed.
            start = "+1" if limit is None else str(min(limit, lines))
            os.execvp("tail", ["tail", "-q", "-n", start, "-F", "--", newer])
        _print(_lines([older, newer]), limit)
    except PermissionError as error:
        next_step = f"sudo {spelled(home, 'daemon', 'logs')}"
        raise HostLacks("read", newer, error.strerror or "", next_step) from error
    except FileNotFoundError as error:
        if error.filename is None:  # execvp names no file
            raise Failed("follow", newer, "there is no program tail", "install coreutils") from error
        said, next_step = "no daemon has logged anything there", "name the home: waypoint --home DIR daemon logs"
        raise UsageProblem("read", newer, said, next_step) from error
    return 0


def _lines(paths: list[str]) -> Iterator[bytes]:
    """The lines of the files, one file after the other; the last file must be there. Raises OSError."""
    for path in paths:
        try:
            with open(path, "rb") as file:
                yield from file
        except FileNotFoundError:
            if path == paths[-1] and len(paths) > 1:
                raise


def _print(lines: Iterable[bytes], limit: int | None) -> None:
    """Print the last `limit` lines; None: all."""
    for line in lines if limit is None else deque(lines, maxlen=limit):
        write_all(1, memoryview(line))
