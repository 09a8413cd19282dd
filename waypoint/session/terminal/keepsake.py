"""A terminal put aside with a capture, and taken out for a restored session: the ring, and the command in flight.

The files are those of a session's own folder, which the next daemon would find: a restored session is adopted like one
whose daemon has died.
"""

import shutil
from pathlib import Path

from shellwrap.ring import copy_ring
from waypoint.linux import files, terminals
from waypoint.session.terminal.terminal import Terminal

RING = "ring"
EXEC = "exec.json"
AHEAD = "typed-ahead"


def take_ahead(terminal: Terminal, session_folder: Path) -> bool:
    """Take what was typed and nobody has read out of the terminal, into a file; False if there is nothing. Raises
    OSError, with all as it was.

    CRIU would read it, too, and write it to the master: there it is echoed a second time, comes after the line that is
    not finished, and where a process has opened the terminal once more (zsh has) it comes back as output.
    """
    found = terminals.take_typed_ahead(terminal.master)
    if found:
        try:
            files.publish(str(session_folder / AHEAD), found, durable=False)
        except OSError:
            terminals.type_ahead(terminal.master, found)
            raise
    return bool(found)


def give_back_ahead(terminal: Terminal, session_folder: Path) -> None:
    """Undo `take_ahead`, if it was done: its own, or that of the daemon before. The session must stand still."""
    path = session_folder / AHEAD
    if path.exists():
        terminals.type_ahead(terminal.master, path.read_bytes())
        path.unlink()


def put_aside(terminal: Terminal, session_folder: Path, folder: Path) -> int:
    """Write copies into `folder`; bytes on disk. The terminal must stand still. Raises OSError."""
    size = terminal.ring.save(str(folder / RING), terminal.reader.spill)
    _copy(session_folder, folder)
    return size


def take_out(folder: Path, session_folder: Path) -> None:
    """Put what was put aside into the folder of a session to be. Raises OSError, also if there is no room for it."""
    copy_ring(str(folder / RING), str(session_folder / RING))
    _copy(folder, session_folder)


def _copy(source: Path, target: Path) -> None:
    for name in (EXEC, AHEAD):
        if name == EXEC or (source / name).exists():
            shutil.copyfile(source / name, target / name)
            (target / name).chmod(0o600)
