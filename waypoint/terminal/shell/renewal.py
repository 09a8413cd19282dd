"""Restores the shell's state after a command has ended the shell (`exit`): the new shell gets the state that the old
shell wrote when it ended.
"""

import contextlib
import functools
from collections.abc import Callable

from waypoint.capture.layers.shell import LAST, MAX_BYTES, history_in, in_order, last_states
from waypoint.model.errors import WaypointError
from waypoint.model.records import ShellLayer
from waypoint.terminal.exec.command_line import CommandLine
from waypoint.terminal.hooks.run_folder import RunFolder, apart, read_aside, remove_aside
from waypoint.terminal.shell.dump import ShellDump, parse
from waypoint.terminal.shell.putting_back import put_back

_TITLE = "the previous shell has ended; this shell takes over its state"


async def renew(line: CommandLine, branch: str) -> None:
    """Give the new shell the state of the previous shell. Print on the terminal what could not be restored.

    Only `line` calls this, when the new shell is at its first prompt.
    """
    try:
        then, now = await apart(line.desk.folder, _read_states)
        stays = await put_back(line, branch, now, then, _TITLE, in_turn=True)
    except (WaypointError, OSError, ValueError) as error:
        stays = [error.said if isinstance(error, WaypointError) else str(error)]
    for said in stays:
        line.desk.terminal.append(
            f"\r\n» differs from the previous shell: {said}\r\n".encode(errors="backslashreplace")
        )


def _read_states(folder: RunFolder) -> tuple[ShellDump, ShellDump]:
    """Return the state of the previous shell at its end, and the state of the new shell at its first prompt. Read each
    from the run folder, or from the spare folder if that has a newer state. Remove the files in the spare folder.
    Blocks.
    """
    places = (folder.read, functools.partial(read_aside, folder))
    try:
        found = [(layer, read) for read in places for layer in last_states(functools.partial(_whole, read))]
        match found[-2:]:
            case [(ShellLayer() as then, then_read), (ShellLayer() as now, now_read)]:
                return _parse(then_read, then), _parse(now_read, now)
            case _:
                raise ValueError("the shell's state is incomplete")
    finally:
        remove_aside(folder, *LAST, "names", "hist.0", "hist.1")


def _whole(read: Callable[[str, int], bytes], name: str) -> bytes:
    return read(name, MAX_BYTES)


def _parse(read: Callable[[str, int], bytes], layer: ShellLayer) -> ShellDump:
    data = in_order(read(layer.file, layer.size_bytes))
    name = history_in(data)
    history = None
    with contextlib.suppress(FileNotFoundError):  # the session has removed it
        history = read(name, MAX_BYTES) if name else None
    return parse(data, layer.kind, history)
