"""From the process's arguments to a command's code. click is loaded only for help, and to say what is wrong with the
arguments.
"""

import os
import sys

from waypoint.cli.output import EXIT_INTERRUPTED, EXIT_NO_READER, fail, use_home
from waypoint.model.errors import Failed, WaypointError
from waypoint.model.verbs import COMPLETE, asks_for_json, fast, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_GARBAGE_AFTER = 100_000
"""After how many new objects garbage is looked for. What a command imports, and nothing of that is garbage, is less."""


def main(argv: list[str]) -> "NoReturn":
    """Run `waypoint ARGV` and end the process."""
    _occupy_standard_streams()
    if argv[:1] == ["--json"]:
        argv = _behind_the_verb(argv)
    try:
        leave(_run(argv))
    except WaypointError as error:
        leave(_fail(argv, error))
    except KeyboardInterrupt:
        leave(EXIT_INTERRUPTED)
    except BrokenPipeError:
        leave(EXIT_NO_READER)
    except OSError as error:  # of this process's own files: stdout on a full disk, a folder that is gone
        where = f": {os.fsdecode(error.filename)}" if error.filename else ""
        next_step = "mend that, or let the output go elsewhere; then try again"
        leave(_fail(argv, Failed("go on", "", f"{error.strerror or error}{where}", next_step)))


def _behind_the_verb(argv: list[str]) -> list[str]:
    """`argv`, which begins with `--json`, with this option where a verb takes it."""
    from waypoint.model.verbs import table

    rest = argv[1:]
    at_home = 2 if rest[:1] == ["--home"] else 1 if rest and rest[0].startswith("--home=") else 0
    _verb, behind = table.find(rest[at_home:])
    place = len(rest) - len(behind)
    return [*rest[:place], "--json", *behind] if place > at_home else [*rest, "--json"]


def _fail(argv: list[str], error: WaypointError) -> int:
    """As `fail`. With `exec --json` the value has the usual fields of an outcome, too, which say whose the exit status
    is (exec_json.py). Of `argv`, click has taken away what stood before the verb.
    """
    from waypoint.cli.caller import with_meant

    error = with_meant(error)
    is_exec = argv[:1] == ["exec"]
    beside: dict[str, object] = {"exit": error.exit_code, "by": "waypoint", "ended": False, "output": ""}
    return fail(error, as_json=_asks_for_json(argv), beside=beside if is_exec else None)


def _asks_for_json(argv: list[str]) -> bool:
    """Whether the result, and so an error, is to be one JSON value. The verbs that are not in `fast` take no words of
    a command line, so `--json` means the same in all of them.
    """
    return bool(argv) and asks_for_json(fast.VERBS.get(argv[0]), argv[1:])


def _occupy_standard_streams() -> None:
    """Open /dev/null in place of descriptors 0, 1 and 2 that the caller has closed. Otherwise the next file that this
    process opens, such as its socket, would get the number and pass for stdin.

    The stand-ins cannot be used either: stdin is opened for writing, stdout and stderr for reading.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if fd else os.O_WRONLY)


def leave(code: int) -> "NoReturn":
    """Flush Python's own streams, and end the process without the interpreter's shutdown, which takes time."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # its reader is gone, or it was closed before the start
            continue
    os._exit(code & 0xFF)


def _run(argv: list[str]) -> int:
    if argv and argv[0] == COMPLETE:
        completed: int = __import__("waypoint.cli.completion", fromlist=["run"]).run(argv[1:])
        return completed
    verb = fast.VERBS.get(argv[0]) if argv else None
    given = parse(verb, argv[1:]) if verb is not None else None
    if verb is not None and given is not None:
        use_home(given.text("home"))
        code: int = __import__(f"waypoint.cli.fast.{verb.name}", fromlist=["run"]).run(given)
        return code
    return _run_other(argv)


def _run_other(argv: list[str]) -> int:
    """Run a verb that is not of the fast path, or show what is wrong."""
    import _signal  # type: ignore[import-not-found, unused-ignore] # `signal` loads enum
    import gc

    from waypoint.model.verbs import table

    gc.set_threshold(_GARBAGE_AFTER)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # if ignored, the programs of `setup` would all seem to succeed
    verb, rest = table.find(argv)
    given = parse(verb, rest) if verb is not None else None
    if verb is not None and given is not None:
        from waypoint.cli.actions import action_of
        from waypoint.model.packages import import_late

        import_late("inspect", "copy")
        use_home(given.text("home"))
        return action_of(verb.name)(given)

    from waypoint.model.packages import make_importable

    make_importable("click")
    from waypoint.cli import front

    return front.run(argv, as_json=_asks_for_json(argv))
