"""From the process's arguments to a command's code: the hot verbs at once, all others by way of click."""

import os
import sys

from waypoint.cli import hot_verbs
from waypoint.model.errors import WaypointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141  # what a shell reports of a program that SIGPIPE ended
# Set by the shell's completion function, as click makes it.
COMPLETION_VARIABLE = "_WAYPOINT_COMPLETE"


def main(argv: list[str]) -> "NoReturn":
    """Run `waypoint ARGV` and end the process."""
    _occupy_standard_streams()
    try:
        leave(_run(argv))
    except WaypointError as error:
        complain(str(error))
        leave(error.exit_code)
    except KeyboardInterrupt:
        leave(EXIT_INTERRUPTED)
    except BrokenPipeError:
        leave(EXIT_NO_READER)


def _occupy_standard_streams() -> None:
    """Where our caller has closed 0, 1 or 2, nothing of ours may get that number: our socket would pass for stdin.

    What stands in for them can be used as little as a closed one.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if fd else os.O_WRONLY)


def complain(text: str) -> None:
    """Say on stderr what went wrong. A stderr that nobody reads is no second problem."""
    try:
        os.write(2, f"waypoint: {text}\n".encode(errors="backslashreplace"))
    except OSError:
        return


def leave(code: int) -> "NoReturn":
    """End at once: tearing the interpreter down takes time, and nothing waits in buffers but Python's own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # nobody reads it, or it was closed before we began
            continue
    os._exit(code & 0xFF)


def _run(argv: list[str]) -> int:
    verb = hot_verbs.VERBS.get(argv[0]) if argv else None
    if verb is not None and COMPLETION_VARIABLE not in os.environ:
        parameters = hot_verbs.parse(verb, argv[1:])
        if parameters is not None:
            from waypoint.cli import hot

            return hot.ACTIONS[verb.name](parameters)
    from waypoint.cli import packages

    packages.make_importable()
    from waypoint.cli.group import run

    return run(argv)
