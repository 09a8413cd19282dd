"""The work on a terminal while its session is frozen for a capture: taking typed-ahead input out, making copies.

The functions here are called in a thread between `Terminal.stand_still` and `Terminal.go_on`, while the event loop
neither reads from the terminal, nor writes to it or to its ring. (It may still set the window's size or send a signal.)
"""

from pathlib import Path

from shellwrap.marks import LONGEST, MarkScanner
from waypoint.capture.layers.terminal import copy_small_files
from waypoint.linux.storage import files
from waypoint.linux.tty import terminals
from waypoint.model.paths import RING_FILE, TYPED_AHEAD_FILE
from waypoint.model.records import TerminalLayer
from waypoint.terminal.terminal import Terminal


def take_typed_ahead(terminal: Terminal, session_folder: Path) -> None:
    """Move typed input that no program has read yet from the terminal into a file in the session's runtime folder.

    Makes no file if there is no such input. Raises OSError; the input is in the terminal then, as before.

    Without this CRIU would read the input and write it to the master at the restore. There it would be echoed a second
    time and come behind an unfinished line; if a process has opened the terminal once more, as zsh does, it would come
    back as output.
    """
    found = terminals.take_typed_ahead(terminal.master)
    if found:
        try:
            files.publish(str(session_folder / TYPED_AHEAD_FILE), found, durable=False)
        except OSError:
            terminals.type_ahead(terminal.master, found)
            raise


def give_typed_ahead_back(terminal: Terminal, session_folder: Path) -> None:
    """Undo `take_typed_ahead`, which this daemon or an earlier one has called. Does nothing if there is no file."""
    path = session_folder / TYPED_AHEAD_FILE
    if path.exists() and not terminal.is_released:
        terminals.type_ahead(terminal.master, path.read_bytes())
        path.unlink()


def save(terminal: Terminal, session_folder: Path, folder: Path) -> TerminalLayer:
    """Write copies of the ring and of the small files in `session_folder` into `folder`."""
    spill = terminal.reader.spill
    size = terminal.ring.save(str(folder / RING_FILE), spill)
    copy_small_files(session_folder, folder)
    rows, cols = terminal.window.size
    return TerminalLayer(size_bytes=size, rows=rows, cols=cols, end=terminal.ring.end + len(spill))


def has_printed_prompt(terminal: Terminal) -> bool:
    """True if the drained output has a mark P in it, by which the shell says that it is about to draw a prompt."""
    ring = terminal.ring
    start = max(ring.start, terminal.reader.drained_from - LONGEST)
    drained = ring.copy(start, ring.end) + terminal.reader.spill
    marks = MarkScanner(start).feed(drained)
    return any(mark.kind == "P" and mark.end > terminal.reader.drained_from for mark in marks)
