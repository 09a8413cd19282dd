"""The work on a terminal while its session is frozen for a capture: saving typed-ahead input (typed, but not read by a
program yet), and copying the terminal's files.

These functions are called in a thread between `Terminal.stand_still` and `Terminal.go_on`. In this time the event loop
does not read from the terminal, nor write to the terminal or its ring. It may still set the window's size or send a
signal.
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

    Creates no file if there is no such input. If OSError is raised, the input stays in the terminal.

    Otherwise CRIU would save this input and type it again at the restore. The terminal would then echo the input a
    second time, and insert it after an unfinished line. If a process has opened the terminal a second time, as zsh
    does, the input would even be restored as output.
    """
    found = terminals.take_typed_ahead(terminal.master)
    if found:
        try:
            files.publish(str(session_folder / TYPED_AHEAD_FILE), found, durable=False)
        except OSError:
            terminals.type_ahead(terminal.master, found)
            raise


def give_typed_ahead_back(terminal: Terminal, session_folder: Path) -> None:
    """Undo a `take_typed_ahead` of this daemon or an earlier daemon. Does nothing if the file does not exist."""
    path = session_folder / TYPED_AHEAD_FILE
    if path.exists() and not terminal.is_released:
        terminals.type_ahead(terminal.master, path.read_bytes())
        path.unlink()


def save(terminal: Terminal, session_folder: Path, folder: Path) -> TerminalLayer:
    """Copy the ring and the small files of the terminal from `session_folder` into `folder`."""
    spill = terminal.reader.spill
    size = terminal.ring.save(str(folder / RING_FILE), spill)
    copy_small_files(session_folder, folder)
    rows, cols = terminal.window.size
    return TerminalLayer(size_bytes=size, rows=rows, cols=cols, end=terminal.ring.end + len(spill))


def has_printed_prompt(terminal: Terminal) -> bool:
    """True if the output that `TerminalReader.drain` has read contains a mark P, by which the shell announces a
    prompt.
    """
    ring = terminal.ring
    start = max(ring.start, terminal.reader.drained_from - LONGEST)
    drained = ring.copy(start, ring.end) + terminal.reader.spill
    marks = MarkScanner(start).feed(drained)
    return any(mark.kind == "P" and mark.end > terminal.reader.drained_from for mark in marks)
