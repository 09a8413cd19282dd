"""The layers in their order: the order in which they are prepared.

In the pause, when they are put on record (CRIU ends while that of the programs is written) and when they are brought
back, the order is reversed; but the last one is put on record last: what is attached is taken over when nothing can
fail any more. In the pause the terminal is drained before CRIU looks at it; CRIU begins to dump before the snapshot of
the files begins, which goes on beside the dump; the shell is looked at last, when all its output is known.
"""

from waypoint.capture.layers.attached import ATTACHED
from waypoint.capture.layers.files import FILES
from waypoint.capture.layers.layer import Layer
from waypoint.capture.layers.processes import PROCESSES
from waypoint.capture.layers.programs import PROGRAMS
from waypoint.capture.layers.shell import SHELL
from waypoint.capture.layers.terminal import TERMINAL

LAYERS: tuple[Layer, ...] = (SHELL, FILES, PROCESSES, PROGRAMS, TERMINAL, ATTACHED)
