"""Parses the command line and calls the function of its verb."""

import os
import sys

from waypoint.cli.output import EXIT_INTERRUPTED, EXIT_NO_READER, fail, print_lines, use_home, write_all
from waypoint.model.errors import Failed, WaypointError
from waypoint.model.paths import COMMAND_FOLDER, OWN_FOLDER
from waypoint.model.verbs import COMPLETE, HelpRequested, asks_for_json, fast, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from waypoint.model.verbs import Given, Verb

EXIT_USAGE = 2
SESSIONS_OWN = f"/{OWN_FOLDER}/{COMMAND_FOLDER}/waypoint"
"""Inside a session: the command `waypoint` that asks the daemon."""

PLACES = {
    "exec": "fast.command:run_exec",
    "run": "fast.command:run_run",
    "shell": "fast.shell:run",
    "checkpoint": "fast.captures:checkpoint",
    "point": "fast.captures:point",
    "restore": "fast.captures:restore",
    "fork": "fast.captures:fork",
    "setup": "commands.setup:run",
    "doctor": "commands.doctor:run",
    "attach": "commands.sessions:attach",
    "logs": "commands.sessions:logs",
    "ps": "commands.sessions:ps",
    "port": "commands.sessions:port",
    "stop": "commands.sessions:stop",
    "branch": "commands.names:list_branches",
    "branch delete": "commands.names:delete",
    "branch list": "commands.names:list_branches",
    "branch rename": "commands.names:rename",
    "base create": "commands.bases:create",
    "base list": "commands.bases:list_bases",
    "base rm": "commands.bases:remove",
    "base show": "commands.bases:show",
    "layer list": "commands.layers:list_layers",
    "layer attach": "commands.layers:attach",
    "layer get": "commands.layers:get",
    "profile list": "commands.profile:list_profiles",
    "profile show": "commands.profile:show",
    "profile test": "commands.profile:test",
    "prove": "commands.prove:run",
    "rm": "commands.names:remove",
    "log": "commands.log:run",
    "list": "commands.log:list_checkpoints",
    "show": "commands.show:run",
    "handoff": "commands.handoff:run",
    "search": "commands.search:run",
    "adopt": "commands.adopt:run",
    "diff": "commands.diff:run",
    "apply": "commands.apply:run",
    "cp": "commands.files:cp",
    "cat": "commands.files:cat",
    "ls": "commands.files:list_files",
    "mount": "commands.files:mount",
    "umount": "commands.files:umount",
    "rewind": "commands.rewind:run",
    "undo": "commands.operations:undo",
    "op log": "commands.operations:log",
    "verify": "commands.images:verify",
    "evict": "commands.images:evict",
    "export": "commands.archives:export",
    "import": "commands.archives:import_archive",
    "gc": "commands.space:gc",
    "du": "commands.space:du",
    "events": "commands.events:run",
    "mcp": "commands.mcp:run",
    "guide": "commands.guide:run",
    "install": "commands.install:install",
    "uninstall": "commands.install:uninstall",
    "daemon logs": "commands.daemon:logs",
    "daemon run": "commands.daemon:run",
    "daemon status": "commands.daemon:status",
    "daemon stop": "commands.daemon:stop",
}
"""By verb, the module below waypoint.cli and the function. A module is loaded when its verb is used."""


def main(argv: list[str]) -> "NoReturn":
    """Run `waypoint ARGV` and end the process."""
    if os.path.exists(SESSIONS_OWN):
        _hand_over(argv)
    _occupy_standard_streams()
    try:
        leave(run(argv))
    except WaypointError as error:
        leave(_fail(argv, error))
    except KeyboardInterrupt:
        leave(EXIT_INTERRUPTED)
    except BrokenPipeError:
        leave(EXIT_NO_READER)
    except OSError as error:  # from this process's own files, such as stdout on a full disk or a removed folder
        where = f": {os.fsdecode(error.filename)}" if error.filename else ""
        next_step = "repair this, or redirect the output to another file; then run the command again"
        leave(_fail(argv, Failed("finish the command", "", f"{error.strerror or error}{where}", next_step)))


def _hand_over(argv: list[str]) -> None:
    """Become the session's own command, if it has the verb or there is no such verb. A `waypoint` of the machine, as in
    /usr/local/bin, comes before it in the session's PATH.
    """
    import signal

    from waypoint.model.verbs import inside
    from waypoint.model.verbs.table import WAYPOINT

    is_none = not argv or not (argv[0].startswith("-") or argv[0] == "help" or argv[0] in WAYPOINT.by_word)
    if is_none or argv[:1] == [COMPLETE] or inside.has(argv):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
        os.execv(SESSIONS_OWN, [SESSIONS_OWN, *argv])


def run(argv: list[str]) -> int:
    """Run one command and return its exit status. Raises WaypointError, OSError."""
    try:
        return _run(argv)
    except HelpRequested as request:
        verb = request.verb
    _print_help(verb)
    return 0


def _run(argv: list[str]) -> int:
    if argv and argv[0] == COMPLETE:
        completed: int = __import__("waypoint.cli.completion", fromlist=["run"]).run(argv[1:])
        return completed
    verb = fast.VERBS.get(argv[0]) if argv else None
    if verb is None:
        return _run_other(argv)
    return _act(verb, parse(verb, argv[1:]))


def _run_other(argv: list[str]) -> int:
    """Run a verb that is not of the fast path, or one with options before it."""
    import signal

    from waypoint.model.verbs import table

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, the programs of `setup` would all seem to succeed
    if argv[:1] == ["help"]:
        raise HelpRequested(table.find(argv[1:])[0])
    verb, words = table.find(argv)
    given = parse(verb, words)
    if verb.name in PLACES:
        return _act(verb, given)
    if "version" in given and given.flag("version"):
        from waypoint import __version__

        print_lines([f"waypoint, version {__version__}"])
        return 0
    _print_help(verb, fd=2)  # a group without the name of a member
    return EXIT_USAGE


def _act(verb: "Verb", given: "Given") -> int:
    use_home(given.text("home"))
    if os.isatty(2) and os.environ.get("TERM") != "dumb" and not ("json" in given and given.flag("json")):
        from waypoint.client.wire import show_waits

        show_waits(lambda: __import__("waypoint.cli.progress", fromlist=["Line"]).Line())
    code: int = action_of(verb.name)(given)
    return code


def action_of(verb: str) -> "Callable[[Given], int]":
    """Return the function that carries `verb` out. It gets the verb's parameters, returns the exit status, and raises
    WaypointError or OSError.
    """
    module, _, function = PLACES[verb].partition(":")
    found: Callable[[Given], int] = getattr(__import__(f"waypoint.cli.{module}", fromlist=[function]), function)
    return found


def _print_help(verb: "Verb", fd: int = 1) -> None:
    from waypoint.cli.help import help_of

    write_all(fd, memoryview(help_of(verb).encode()))


def _fail(argv: list[str], error: WaypointError) -> int:
    """Like `output.fail`. With `exec --json` and `run --json` the value also has the fields that every result of them
    has (exec_json.py).
    """
    from waypoint.model.verbs import table

    try:
        verb, words = table.find(argv)
    except WaypointError:  # an unknown verb
        verb, words = None, argv
    as_json, beside = asks_for_json(verb, words), None
    if as_json and verb is not None and verb.name in ("exec", "run"):
        from waypoint.cli.fast.exec_json import nothing_of

        beside = nothing_of(verb.name) | {"exit": error.exit_code}
    return fail(error, as_json=as_json, beside=beside)


def _occupy_standard_streams() -> None:
    """Open /dev/null in place of descriptors 0, 1 and 2 that the caller has closed. Otherwise the next file that this
    process opens, such as its socket, would get the number and be used as stdin.

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
