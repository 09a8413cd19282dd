"""The work on a terminal while its session is frozen for a capture.

These functions are called in a thread between `Terminal.stand_still` and `Terminal.go_on`. In this time the event loop
does not read from the terminal, nor write to the terminal or its ring. It may still set the window's size or send a
signal.
"""

from pathlib import Path

from shellwrap.marks import LONGEST, MarkScanner
from waypoint.capture.layers.terminal import copy_small_files
from waypoint.model.paths import RING_FILE
from waypoint.model.records import TerminalLayer
from waypoint.terminal.terminal import Terminal


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
