"""Output of commands: bytes, lines and JSON on stdout, messages on stderr, exit statuses.

Loaded by every command: client/wire.py says what may be imported here.
"""

import os

from waypoint.model import plainjson
from waypoint.model.errors import UsageProblem, as_text, cleaned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.errors import WaypointError

EXIT_FAILED = 125  # `exec` and `run`: waypoint itself failed; other statuses are the command's
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141  # the status that a shell reports for a program that SIGPIPE has ended

_named: "list[str | None]" = [None]
"""The value of --home."""


def use_home(named: "str | None") -> None:
    """Set the home that messages are about; None: the default home."""
    _named[0] = named


def advice(text: str) -> str:
    """`text` with `--home` added to the commands in it that would otherwise act on another home than this command does.
    Everything on stderr passes through this function.
    """
    if "waypoint " not in text:
        return text
    from waypoint.client.address import find_home

    try:
        plain = find_home()
        home = find_home(_named[0])
    except UsageProblem:  # this is the error in `text`
        return text
    if home == plain and "sudo waypoint " not in text:
        return text
    from waypoint.model.verbs.advice import on_home

    return on_home(text, home, plain)


def write_all(fd: int, view: memoryview) -> None:
    """Write all of `view`, even if another process has made the descriptor non-blocking."""
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            import select

            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()


def wants_colour() -> bool:
    """Return whether stdout is a terminal on which colours are wanted."""
    return os.isatty(1) and not os.environ.get("NO_COLOR")


def terminal_width() -> int | None:
    """Return the number of columns of the terminal on stdout; None if stdout is no terminal, or the number unknown."""
    return (os.get_terminal_size(1).columns or None) if os.isatty(1) else None


def print_lines(lines: list[str]) -> None:
    write_all(1, memoryview("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")))


def file_names(names: list[str]) -> list[str]:
    """Names of files as they are printed: on a terminal without control characters."""
    return [cleaned(name) for name in names] if os.isatty(1) else names


def note(text: str) -> None:
    """Print a line on stderr."""
    write_all(2, memoryview(f"{advice(text)}\n".encode(errors="backslashreplace")))


def print_json(value: object) -> None:
    """Print one JSON value on stdout, in ASCII: on one line, or indented if stdout is a terminal. `value` may contain
    records (dataclasses).
    """
    if os.isatty(1):
        import json

        print_lines([json.dumps(value, indent=2, default=plainjson.fields)])
    else:
        print_json_line(value)


def print_json_line(value: object) -> None:
    """Like `print_json`, but always on one line: for a command that prints several values."""
    print_lines([json_line(value)])


def json_line(value: object) -> str:
    return plainjson.encode(value)


def warn(heading: str, items: object) -> None:
    """Print a line on stderr for each item, if `items` is a list."""
    warn_lines([cleaned(f"{heading}: {item}") for item in (items if isinstance(items, list) else ())])


def warn_lines(lines: list[str]) -> None:
    """Print lines on stderr."""
    for line in lines:
        os.write(2, f"{advice(line)}\n".encode(errors="backslashreplace"))


def fail(error: "WaypointError", *, as_json: bool, beside: "dict[str, object] | None" = None) -> int:
    """Print an error on stderr; with `as_json` also as a JSON value on stdout, with the further members `beside`.
    Returns the exit status.
    """
    print_error(str(error))
    if as_json:
        try:
            print_json(error_value(error) | (beside or {}))
        except OSError:  # stderr has the error, too
            return error.exit_code
    return error.exit_code


def error_value(error: "WaypointError", exit_code: "int | None" = None) -> "dict[str, object]":
    """What `--json` prints in place of a result. `exit_code`: this process's exit status; None: that of the error."""
    code = error.exit_code if exit_code is None else exit_code
    return {"error": error.to_json() | {"exit": code, "next": advice(as_text(error.next_step))}}


def print_error(text: str) -> None:
    """Print an error on stderr; if stderr cannot be written, do nothing."""
    said = cleaned(advice(text), keep="\n")
    try:
        os.write(2, f"waypoint: {said}\n".encode(errors="backslashreplace"))
    except OSError:
        return


def agrees(question: str) -> bool:
    """Ask the user on the terminal."""
    from waypoint.model.packages import make_importable

    make_importable("click")
    import click

    try:
        return click.confirm(question, err=True)
    except click.Abort:
        return False
