"""After the machine went down without notice (power loss, a crash of its kernel): which captures may be torn.

What lies in the hot area is not forced to the disk: the kernel writes it out within half a minute or so. So whatever
was written in the last minutes before the machine went down may be there in part. What the store has is brought back
from there before it is used; of what it does not have, whoever is brought back from it is told.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from waypoint.linux.storage import files, filesystem
from waypoint.linux.tasks import procfs
from waypoint.model.errors import WaypointError

NOTE = "machine.json"
MAY_BE_TORN = "the machine went down before this was in the store: what the disk has of it may be torn"
WRITTEN_OUT_S = 600.0
"""What was written so much earlier has reached the disk, under any usual setting of the kernel's
(vm.dirty_expire_centisecs, 30 s; vm.dirty_writeback_centisecs, 5 s).
"""
SYNC_S = 3.0
"""So long a daemon that stops waits at most until what it has written is on the disk."""

TakenWhen = Callable[[], Mapping[str, tuple[str, float]]]
"""Tells of captures, by id, in which boot of the machine they were taken, and what CLOCK_BOOTTIME was then."""

log = logging.getLogger(__name__)


class _MachineNote(msgspec.Struct, frozen=True):
    """`boot`: the boot of the machine in which a daemon last opened the home. `is_over`: whether that daemon has
    stopped, and all that it had written was on the disk by then. `torn`: the ids of captures that may be torn.
    """

    boot: str
    is_over: bool = False
    torn: list[str] = []


class Torn:
    """What may be torn of one home's captures. Any thread may call the methods, but for `look`."""

    def __init__(self, home: Path) -> None:
        self._path = str(home / NOTE)
        self._ids: set[str] = set()
        self._lock = threading.Lock()

    def look(self, written: Mapping[str, float], lost: Iterable[str] = (), taken: TakenWhen = dict) -> None:
        """To be called when the home is opened. `written`: when each capture that has something in the hot area was
        last written there, at the latest, by its id, in seconds since the epoch. `lost`: those of which a part is
        missing: it was in memory alone when the machine went down. `taken`: what tells when the others were taken,
        whatever the clock was set to since. Raises OSError: then nothing is known, and the next daemon looks again.
        """
        before = _read(self._path)
        self._ids = set(before.torn) & written.keys() | set(lost)
        if before.boot not in ("", procfs.boot_id()) and not before.is_over:
            last = max(written.values(), default=0.0)
            self._ids |= {capture_id for capture_id, at in written.items() if at > last - WRITTEN_OUT_S}
            clocks = {ident: clock for ident, (boot, clock) in taken().items() if boot == before.boot}
            last = max(clocks.values(), default=0.0)
            self._ids |= {ident for ident in clocks.keys() & written.keys() if clocks[ident] > last - WRITTEN_OUT_S}
            if self._ids:
                log.warning("the machine went down without notice: %d captures may be torn", len(self._ids))
        self._write(is_over=False)

    def may_be(self, capture_id: str) -> bool:
        """Whether what the disk has of the capture may be torn."""
        return capture_id in self._ids

    def note(self, capture_id: str) -> None:
        """A part of the capture is missing. Raises OSError: then the next daemon finds that out."""
        with self._lock:
            self._ids.add(capture_id)
            self._write(is_over=False)

    def mend(self, capture_id: str) -> None:
        """The capture was brought back from the store. Raises OSError: then it will be brought back once more."""
        with self._lock:
            if capture_id in self._ids:
                self._ids.discard(capture_id)
                self._write(is_over=False)

    def stop(self, written: Callable[[], Mapping[str, float]]) -> None:
        """The last call: the daemon stops, and nothing is captured any more. Has the disk written, for SYNC_S at most.
        `written`: as for `look`. Blocks. Does not raise; what has not worked leaves it as if the machine went down.
        """
        is_out = threading.Event()

        def sync() -> None:
            with contextlib.suppress(OSError, WaypointError):
                if written():
                    filesystem.sync_filesystem(os.path.dirname(self._path))
                is_out.set()

        thread = threading.Thread(target=sync, daemon=True)
        thread.start()
        thread.join(SYNC_S)
        with contextlib.suppress(OSError):  # on a disk that is full or read-only it is as if the machine went down
            self._write(is_over=is_out.is_set())

    def _write(self, *, is_over: bool) -> None:
        note = _MachineNote(procfs.boot_id(), is_over, sorted(self._ids))
        if note != _read(self._path):
            files.publish(self._path, msgspec.json.encode(note))


def _read(path: str) -> _MachineNote:
    try:
        return msgspec.json.decode(files.read_own(path), type=_MachineNote)
    except FileNotFoundError:
        return _MachineNote("")
    except msgspec.MsgspecError as error:
        log.warning("cannot read %s: %s", os.path.basename(path), error)
        return _MachineNote("")
