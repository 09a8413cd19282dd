"""The programs and the variables in which two sessions or captures differ."""

import contextlib
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from waypoint.capture.captures import Held
from waypoint.capture.layers.shell import KeptShell, last_prompt, read_state
from waypoint.model.details.diff_facts import DiffLine
from waypoint.model.errors import WaypointError
from waypoint.processes.profiles.known import arguments
from waypoint.processes.respawn.redact import command_line
from waypoint.service.home import Home
from waypoint.session.live.session import LiveSession
from waypoint.terminal.shell.dump import parse
from waypoint.terminal.shell.words import readable

_EVERY_COMMAND = frozenset(
    (b"_", b"OLDPWD", b"SHLVL", b"COLUMNS", b"LINES", b"READLINE_LINE", b"READLINE_MARK", b"READLINE_POINT")
)
"""Variables that shells change by themselves."""
_EXPORTED: dict[Literal["bash", "zsh"], bytes] = {"bash": b"x", "zsh": b"export"}

Entered = tuple[LiveSession | None, Held | None]
"""A live session, or a capture."""


def compared(home: Home, one: Entered, other: Entered) -> list[DiffLine]:
    """The lines about them. What is not known of both is not told. Blocks."""
    found: list[DiffLine] = []
    ran, run = (_commands(home, side) for side in (one, other))
    if ran is not None and run is not None:
        gone, come = ran - run, run - ran
        found.append(
            DiffLine(kind="processes", processes={"removed": sorted(gone.elements()), "added": sorted(come.elements())})
        )
    before, now = (_variables(home, side) for side in (one, other))
    if before is not None and now is not None:
        changed = [name for name in before.keys() & now.keys() if before[name] != now[name]]
        removed, added = before.keys() - now.keys(), now.keys() - before.keys()
        found.append(
            DiffLine(
                kind="environment",
                environment={"removed": _names(removed), "added": _names(added), "changed": _names(changed)},
            )
        )
    return found


def _names(found: Iterable[bytes]) -> list[str]:
    return sorted(readable(name) for name in found)


def _commands(home: Home, side: Entered) -> Counter[str] | None:
    """The command lines of what runs, as often as it does; None if that is not known."""
    live, held = side
    if live is not None:
        found = Counter[str]()
        for pid in live.processes():
            with contextlib.suppress(OSError):  # it has ended
                found[command_line(arguments(pid))] += 1
        return found
    with contextlib.suppress(WaypointError):  # what was noted cannot be read
        return Counter(process.command for process in held.survey()) if held is not None else None
    return None


def _variables(home: Home, side: Entered) -> dict[bytes, bytes] | None:
    """What the shell hands on to programs, by name; None if that is not known. Of a live session as it was at its last
    prompt.
    """
    live, held = side
    with contextlib.suppress(WaypointError, OSError, ValueError):
        state = _state(home, live) if live is not None else held.shell_state() if held is not None else None
        if state is not None:
            kind = state.layer.kind
            found = parse(state.data, kind).variables
            return {
                name: entry.text
                for name, entry in found.items()
                if _EXPORTED[kind] in entry.attributes and name not in _EVERY_COMMAND
            }
    return None


def _state(home: Home, live: LiveSession) -> KeptShell | None:
    tree = home.pool.path(live.record.row.tree)
    layer = last_prompt(tree).layer
    return read_state(tree, layer) if layer is not None else None
