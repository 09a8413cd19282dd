"""`waypoint logs`."""

import os

from shellwrap.screen_undo import ScreenUndo
from waypoint.cli.caller import branch_of
from waypoint.cli.output import write_all
from waypoint.client.sdk import Client
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError, OSError."""
    undo = ScreenUndo()
    is_terminal = os.isatty(1)
    try:
        for piece in Client(given.text("home")).session(branch_of(given)).logs(follow=given.flag("follow")):
            write_all(1, memoryview(piece))
            if is_terminal:
                undo.feed(piece)
    finally:
        if is_terminal:
            write_all(1, memoryview(undo.undo()))
    return 0
