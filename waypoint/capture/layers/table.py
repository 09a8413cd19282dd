"""The layers in their order: the order in which they are prepared and put on record.

In the pause, and when they are brought back, the order is reversed. In the pause the terminal is drained before CRIU
looks at it; CRIU begins to dump before the snapshot of the files begins, which goes on beside the dump; the shell is
looked at last, when all its output is known.
"""

from waypoint.capture.layers.files import FILES
from waypoint.capture.layers.layer import Layer
from waypoint.capture.layers.processes import PROCESSES
from waypoint.capture.layers.programs import PROGRAMS
from waypoint.capture.layers.shell import SHELL
from waypoint.capture.layers.terminal import TERMINAL

LAYERS: tuple[Layer, ...] = (SHELL, FILES, PROCESSES, PROGRAMS, TERMINAL)
