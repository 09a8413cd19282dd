"""The layer `shell`: the state of the session's shell as data (variables, functions, options, folder).

The shell writes the state into the session's own files (/run/waypoint/state), so the state is stored with the layer
`files`, and comes back to the same place with them. A capture has the layer `shell` only if the shell has run nothing
between writing the state and the pause: otherwise the file does not describe the shell that was captured.
"""

import os

from waypoint.capture.layers.files import FILES
from waypoint.capture.layers.layer import Area, Layer, Part, Taking
from waypoint.linux.storage import files
from waypoint.model.errors import CannotCapture, StoreDamaged
from waypoint.model.paths import RUN_FOLDER
from waypoint.model.records import Capture, ShellLayer
from waypoint.upper import layout

STATE_FILE = "state"
MAX_BYTES = 16 << 20


class ShellPart(Part):
    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._asked: ShellLayer | None = None
        self._holds = False

    def prepare(self) -> None:
        self._asked = self.taking.subject.ask_shell()

    def begin(self) -> None:
        self._holds = self._asked is not None and self.taking.subject.shell_holds()

    def record(self) -> ShellLayer | None:
        return self._asked if self._holds else None


class ShellState(Layer):
    kind = "shell"

    def part(self, taking: Taking) -> ShellPart:
        return ShellPart(taking)

    def read(self, area: Area, origin: Capture) -> tuple[ShellLayer, bytes]:
        """The layer's record, and the state as the shell wrote it (docs/protocol.md, section 3), cut at MAX_BYTES.

        Raises CannotCapture if the capture does not have the layer, StoreDamaged if the state cannot be read.
        """
        layer, on = origin.layers.shell, origin.id[:12]
        if layer is None:
            said = "it has no state of the shell: the shell was busy, or is of a kind that Waypoint does not know"
            raise CannotCapture("restore the shell of", on, said, "restore all of it, or another checkpoint")
        try:
            upper = os.open(layout.upper_of(FILES.path(area, origin)), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fd = files.open_beneath(upper, f"{RUN_FOLDER}/{STATE_FILE}", os.O_RDONLY | os.O_NONBLOCK)
            finally:
                os.close(upper)
            with open(fd, "rb") as file:
                return layer, file.read(MAX_BYTES)
        except OSError as error:
            raise unreadable(origin, str(error)) from error


def unreadable(origin: Capture, said: str) -> StoreDamaged:
    """The error for a shell's state that cannot be read. `said`: why, in words."""
    return StoreDamaged("read", f"the shell's state in {origin.id[:12]}", said, "restore another capture")


SHELL = ShellState()
