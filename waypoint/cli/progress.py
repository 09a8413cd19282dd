"""The line on stderr that shows a wait for the daemon: the stage of the work, its amount, and the time."""

import contextlib
import os
import time

from waypoint.client.wire import PATIENCE_S
from waypoint.model import plainjson
from waypoint.model.rendering import duration, progress
from waypoint.model.stages import Stage

TEXTS = {
    Stage.START_DAEMON: "starting the daemon",
    Stage.WAIT_TURN: "waiting for another request on {}",
    Stage.WAIT_COMMAND: "waiting until an earlier command has ended",
    Stage.WAIT_PROMPT: "waiting for the prompt of the shell",
    Stage.HOOK: "running the hook {}",
    Stage.COPY_MEMORY: "copying the memory of the processes",
    Stage.DUMP: "capturing the processes",
    Stage.WRITE_IMAGES: "writing the process images",
    Stage.COPY_FILES: "copying files",
    Stage.LOAD: "reading the capture from the store",
    Stage.RESTORE: "restoring the processes",
    Stage.PROVE: "comparing the restored processes with the capture",
    Stage.START: "starting a session on {}",
    Stage.END: "ending the session on {}",
    Stage.STORE: "storing",
    Stage.COMPARE: "comparing files",
    Stage.EXCHANGE: "exchanging files",
    Stage.APPLY: "changing the files of this machine",
    Stage.ATTACH: "copying {}",
    Stage.MEASURE: "measuring captures and sessions",
    Stage.REMOVE: "removing captures",
    Stage.COLLECT: "removing unused data of the store",
    Stage.SHRINK: "giving free space back to the disk",
    Stage.VERIFY: "checking the store",
    Stage.EVICT: "evicting captures",
    Stage.EXPORT: "exporting",
    Stage.IMPORT: "importing",
    Stage.UNPACK: "unpacking the image",
    Stage.TRY: "trying the capabilities of this machine",
    Stage.SET_UP: "setting up this machine",
}

_WIDTH = 24
_TURNING = "|/-\\"
_DEFAULT = "waiting for the daemon"


def stage_line(stage: dict[str, object]) -> str:
    """Describe a stage in words, with its amount, and with a bar if the whole amount is known."""
    code, subject = str(stage.get("code")), str(stage.get("subject") or "")
    said = TEXTS[Stage(code)].format(subject) if code in TEXTS else f"{code} {subject}".rstrip()
    done, total = stage.get("done"), stage.get("total")
    if not isinstance(done, int) or not (done or total):
        return said
    unit = "bytes" if stage.get("unit") == "bytes" else "items"
    if isinstance(total, int) and done > total:  # it was only a guess
        total = None
    amount = progress({unit: done, f"{unit}_total": total})
    if isinstance(total, int) and total > 0:
        full = _WIDTH * max(done, 0) // total
        return f"{said}  [{'#' * full}{'.' * (_WIDTH - full)}]  {amount}".rstrip()
    return f"{said}  {amount}".rstrip()


class Line:
    """A line on the terminal of stderr that is drawn over itself (waypoint.client.wire.Shown)."""

    def __init__(self) -> None:
        self._begun = time.monotonic() - PATIENCE_S
        self._count = 0

    def draw(self, stage: str) -> None:
        self._count += 1
        words = f"{_TURNING[self._count % len(_TURNING)]} {_said(stage)}  "
        words += duration(time.monotonic() - self._begun)
        _write(f"\r{words[: _columns() - 1]}\x1b[K")

    def erase(self) -> None:
        _write("\r\x1b[K")


def _said(stage: str) -> str:
    with contextlib.suppress(ValueError):
        facts = plainjson.decode_object(stage) if stage else {}
        if facts:
            return stage_line(facts)
    return _DEFAULT


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal has gone
        os.write(2, text.encode(errors="replace"))
