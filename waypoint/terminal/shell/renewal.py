"""After a command has ended the shell: the new one in its place gets the state that the old one wrote at its end."""

import functools
from collections.abc import Callable

from waypoint.capture.layers.shell import LAST, MAX_BYTES, history_in, in_order, last_states
from waypoint.model.errors import WaypointError
from waypoint.model.records import ShellLayer
from waypoint.terminal.exec.command_line import CommandLine
from waypoint.terminal.hooks.run_folder import RunFolder, apart, read_aside, remove_aside
from waypoint.terminal.shell.dump import ShellDump, parse
from waypoint.terminal.shell.putting_back import put_back

_TITLE = "the shell before has ended, its state goes on here"


async def renew(line: CommandLine, branch: str) -> None:
    """Give the new shell the state of the one before. What cannot be brought back is told on the terminal.

    To be called by `line` alone, when the new shell is at its first prompt.
    """
    try:
        then, now = await apart(line.desk.folder, _read_states)
        stays = await put_back(line, branch, now, then, _TITLE, in_turn=True)
    except (WaypointError, OSError, ValueError) as error:
        stays = [error.said if isinstance(error, WaypointError) else str(error)]
    for said in stays:
        line.desk.terminal.append(f"\r\n» not as in the shell before: {said}\r\n".encode(errors="backslashreplace"))


def _read_states(folder: RunFolder) -> tuple[ShellDump, ShellDump]:
    """The state at the end of the shell before, and that of the new one at its first prompt. Each is in the folder or,
    newer than what is there, in memory, from where it is removed. Blocks.
    """
    places = (folder.read, functools.partial(read_aside, folder))
    try:
        found = [(layer, read) for read in places for layer in last_states(functools.partial(_whole, read))]
        match found[-2:]:
            case [(ShellLayer() as then, then_read), (ShellLayer() as now, now_read)]:
                return _parse(then_read, then), _parse(now_read, now)
            case _:
                raise ValueError("its state is not whole")
    finally:
        remove_aside(folder, *LAST, "names", "hist.0", "hist.1")


def _whole(read: Callable[[str, int], bytes], name: str) -> bytes:
    return read(name, MAX_BYTES)


def _parse(read: Callable[[str, int], bytes], layer: ShellLayer) -> ShellDump:
    data = in_order(read(layer.file, layer.size_bytes))
    name = history_in(data)
    return parse(data, layer.kind, read(name, MAX_BYTES) if name else None)
