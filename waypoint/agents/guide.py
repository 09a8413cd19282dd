"""`waypoint guide`: what an agent reads once. Usage and purpose of each command come from the table of verbs, so they
cannot disagree with the commands.
"""

import textwrap
from collections.abc import Iterator
from typing import Literal

from waypoint.model.verbs.table import every_verb, first_sentence

Reader = Literal["claude", "codex", "mcp"]
READERS: tuple[Reader, ...] = ("claude", "codex", "mcp")

_WIDTH = 100
_VERBS = {
    "Work in a session": ("shell", "exec", "run", "logs", "ps", "stop"),
    "Save and go back": ("checkpoint", "restore", "undo", "log", "op log", "show", "search", "rewind"),
    "Try several ways": ("fork", "diff", "prove"),
    "Bring the result to the machine": ("apply", "cp", "export", "handoff"),
    "Room on the disk": ("du", "gc"),
}
"""Verbs by purpose. A verb that the table does not have is left out."""

_BEGIN = """
Waypoint gives you terminal sessions on a copy-on-write view of this machine. What you do in a session changes the
session, not the machine. You can save a whole session (files, processes with their memory, the terminal, the shell),
go back to that state in milliseconds, and start any number of copies of it.
"""
_RULES = (
    "`exec` runs the command in the session's own shell: `cd`, `export`, functions and background jobs last.",
    "Give `exec` a `--timeout`; the exit status is 124 at a timeout. Put `--` before the command.",
    "A checkpoint costs milliseconds. Make one before a step that can destroy something, and one when the environment "
    "is ready (dependencies installed, services running, the bug reproduced).",
    "To try several ways, `fork` the checkpoint and work in the copies side by side, each with its own files, "
    "processes and ports. Keep the best with `checkpoint`, and end the others with `stop --discard`.",
    "`restore NAME` replaces the session by the saved state, and saves the replaced state first. `restore NAME --only "
    "files` leaves programs running. `undo` takes back the last operation, whatever it was.",
    "Nothing reaches the machine until `apply`: look with `diff`, then `apply --dry-run`, then `apply`. `undo` takes "
    "an apply back, too.",
    "Changes in folders shared with `--bind`, and what programs did on other machines, cannot be undone.",
    "What a checkpoint keeps less faithfully than asked is listed by the command as `degraded`. Read it.",
    "With `--json` each result and each error is one JSON value; errors have a `code` and a next step.",
)
_STATUS = (
    "Exit statuses: 0 done; 1 a negative result; 2 wrong usage or unknown name; 3 the machine lacks something; 4 wrong "
    "moment, or the name is taken; 5 processes cannot be saved as asked; 6 conflicts; 10 stored data is damaged. "
    "`exec` and `run` exit with the command's own status, 124 at a timeout, 125 if Waypoint failed."
)
_EXAMPLE = """
waypoint shell -b work -d                                    # a session in the background
waypoint exec -b work --timeout 600 -- 'cd /srv/app && make deps && ./start-services'
waypoint checkpoint ready -b work
waypoint fork ready -n 3 --prefix try -- './attempt {i}'     # try-1 to try-3
waypoint checkpoint best -b try-2
waypoint diff best --stat; waypoint apply best
waypoint stop --discard try-1 try-2 try-3
"""
_FOR: dict[Reader, str] = {
    "claude": "Your own shell tool runs on the machine unless you are inside a session (`$WAYPOINT_BRANCH` is set). "
    "Outside, run risky commands by `waypoint exec`, or by the tools of `waypoint mcp`. Your own rewind does not cover "
    "what shell commands change; a restore of the session does.",
    "codex": "Your own shell tool runs on the machine unless you are inside a session (`$WAYPOINT_BRANCH` is set). "
    "Outside, run risky commands by `waypoint exec`, or by the tools of `waypoint mcp`. Your sandbox may refuse the "
    "socket of Waypoint's daemon: then ask the user to allow `waypoint`.",
    "mcp": "Each tool of `waypoint mcp` is the command of the same name; `read_file`, `write_file`, `list`, `output` "
    "and `try` exist as tools only. Name the branch in every call. Long output is returned in parts: read on with "
    "`output` and its `cursor`.",
}


def guide(reader: Reader | None = None) -> str:
    """The guide in Markdown, with less than 120 lines. `reader`: adds what concerns this agent or protocol."""
    return "\n".join(_lines(reader)) + "\n"


def _lines(reader: Reader | None) -> Iterator[str]:
    yield from ("# Waypoint, for an agent", "")
    yield from textwrap.wrap(_BEGIN.strip(), _WIDTH)
    if reader is not None:
        yield ""
        yield from textwrap.wrap(_FOR[reader], _WIDTH)
    yield from ("", "## Rules", "")
    for rule in _RULES:
        yield from textwrap.wrap(f"* {rule}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    yield ""
    yield from textwrap.wrap(_STATUS, _WIDTH, break_on_hyphens=False)
    yield from ("", "## Example", "", "```", *_EXAMPLE.strip().splitlines(), "```", "", "## Commands", "")
    known = {verb.name: verb for verb in every_verb()}
    for purpose, names in _VERBS.items():
        yield f"{purpose}:"
        for verb in (known[name] for name in names if name in known):
            yield from textwrap.wrap(f"* `{verb.name}`: {first_sentence(verb)}", _WIDTH, subsequent_indent="  ")
        yield ""
    yield "`waypoint COMMAND --help` has all options and an example."
