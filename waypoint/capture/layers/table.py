"""The layers in the order in which they are prepared and recorded.

In the pause and in a restore the order is reversed. In the pause the terminal is drained before CRIU examines it; CRIU
begins to dump before the concurrent snapshot of the files; the shell comes after them, when all its output is known;
the manifest of the programs comes last, so that it is gathered while CRIU dumps.
"""

from waypoint.capture.layers.attached import ATTACHED
from waypoint.capture.layers.files import FILES
from waypoint.capture.layers.layer import Layer
from waypoint.capture.layers.processes import PROCESSES
from waypoint.capture.layers.programs import PROGRAMS
from waypoint.capture.layers.shell import SHELL
from waypoint.capture.layers.terminal import TERMINAL

NAMED: tuple[Layer, ...] = (PROGRAMS, SHELL, FILES, PROCESSES, TERMINAL)
LAYERS: tuple[Layer, ...] = (ATTACHED, *NAMED)

_BY_KIND = {layer.kind: layer for layer in NAMED}


def layer_of(kind: str) -> Layer:
    return _BY_KIND.get(kind, ATTACHED)
