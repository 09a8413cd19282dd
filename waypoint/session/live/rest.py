"""Whether a live session is still as its last capture has it.

Nothing in a session changes unless one of its tasks runs (linux/tasks/stillness.py), the daemon types or sets the size
of the terminal, or something arrives from outside. Of the latter, only the session's private network is watched. So a
session that shares the machine's network or one of its folders never counts as unchanged. The daemon itself changes a
session's files only after a capture that does not count (`keep_frozen`), or after `forget`.

A timer that ends, or a clock that goes on, changes nothing: in a copy of the capture it does the same.
"""

import contextlib
import os
from collections.abc import Mapping
from typing import NamedTuple

from waypoint.linux.tasks import procfs, stillness
from waypoint.linux.tasks.stillness import Rest
from waypoint.model.records import Capture, TerminalLayer
from waypoint.session.live.record import RuntimeRecord
from waypoint.terminal.terminal import Terminal

_PACKETS_BYTES = 1 << 14


class Rested(NamedTuple):
    """A session at the end of the pause of the capture `capture`. `typed`: bytes typed into the terminal so far.
    `packets`: the kernel's counts of the network's packets.
    """

    capture: str
    tasks: Mapping[int, Rest]
    typed: int
    packets: bytes


def look(record: RuntimeRecord, terminal: Terminal, capture_id: str) -> Rested | None:
    """Look at the frozen session. None if nobody could tell later whether it has changed. Never raises OSError."""
    setting = record.row.setting
    if setting.binds or setting.net == "host":
        return None
    with contextlib.suppress(OSError):
        tasks = stillness.look_frozen(record.cgroup)
        if tasks is not None:
            return Rested(capture_id, tasks, terminal.typed.count, _packets(record))
    return None


def is_as_in(rested: Rested, record: RuntimeRecord, terminal: Terminal, capture: Capture) -> bool:
    """Whether the session is as in `capture`, in whose pause `rested` was seen."""
    layer = capture.layer(TerminalLayer)
    if layer is None or capture.id != rested.capture or capture.setting != record.row.setting:
        return False
    printed = terminal.ring.end + len(terminal.reader.spill)
    if (layer.end, (layer.rows, layer.cols), rested.typed) != (printed, terminal.window.size, terminal.typed.count):
        return False
    with contextlib.suppress(OSError):
        now = stillness.look(record.cgroup)
        return now is not None and stillness.have_rested(rested.tasks, now) and _packets(record) == rested.packets
    return False


def _packets(record: RuntimeRecord) -> bytes:
    """The counts of packets that have come from outside of the session, or gone there."""
    if record.row.setting.net != "private":
        return b""
    lines = procfs.raw(record.init_pid, "net/dev", _PACKETS_BYTES).splitlines()
    return os.linesep.encode().join(line for line in lines if not line.lstrip().startswith(b"lo:"))
