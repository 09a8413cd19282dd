"""What is looked at before a capture is begun, so that none costs the machine more than a capture should: a session's
processes may ask for one after the other, and choose what is to be captured.
"""

import errno
import os
from collections.abc import Collection, Iterable

from waypoint.capture.layers.layer import Area
from waypoint.capture.layers.subject import Subject
from waypoint.linux.storage import beneath, filesystem
from waypoint.linux.tasks import procfs, removed
from waypoint.model.errors import CannotCapture, Failed
from waypoint.model.paths import SHARED_MEMORY
from waypoint.model.records import Tier
from waypoint.store import callers
from waypoint.upper.contract import NEXT_STEPS, mib

MOST_OPEN_FILES = 500_000
"""Descriptors of all processes together: more than one program can have. Each is looked at, for some microseconds."""

_ANY_SIZE = 1 << 62


def check(area: Area, subject: Subject, tier: Tier | None, most_deleted_bytes: int) -> None:
    """Raise CannotCapture if the processes have more than MOST_OPEN_FILES, Failed if the disk would have too little
    room left. `tier`: as `Wanted.tier`. `most_deleted_bytes`: the size of the largest deleted file that may be kept.
    """
    processes = subject.processes() if tier != "files" else []
    if tier != "files":
        check_open_files(processes)
    if not callers.is_root(callers.current()):
        kept = processes if tier != "respawn" else []
        most = min(most_deleted_bytes, max(0, area.room_bytes()))
        _check_room(area, subject, images_bytes(kept, most) + _shared_memory(subject.facts.init_pid))


def images_bytes(processes: Collection[int], most_deleted_bytes: int = _ANY_SIZE) -> int:
    """About how large CRIU's images of the processes will be: their memory, but for what is swapped out, and their
    deleted files of at most this size.
    """
    return sum(map(procfs.own_bytes, processes)) + removed.file_bytes(processes, most_deleted_bytes)


def check_open_files(processes: Iterable[int]) -> None:
    """Raise CannotCapture if the processes have more than MOST_OPEN_FILES."""
    count = 0
    for pid in processes:
        count += procfs.count_open_files(pid)
        if count > MOST_OPEN_FILES:
            said = f"they have more than {MOST_OPEN_FILES} open files"
            raise CannotCapture("dump", "the processes", said, "end some; or keep the files alone: --tier files")


def _check_room(area: Area, subject: Subject, needed: int) -> None:
    """What a capture has of memory and of deleted files, `needed` bytes, lies on the machine's disk, where only root
    may fill it: no limit of a session's is held there, and checkpoints stay. As much is left free as a pool leaves that
    grows.
    """
    if area.room_bytes() < needed:
        no_space, kept = os.strerror(errno.ENOSPC), f"{mib(needed)} of memory and deleted files"
        said = f"{no_space}: with {kept} kept, the disk of the home would have less than {mib(area.floor_bytes())}"
        raise Failed("capture", f"branch {subject.facts.branch}", said, NEXT_STEPS[errno.ENOSPC])


def _shared_memory(init_pid: int) -> int:
    """Bytes in the session's /dev/shm; 0 where the session has something else there, which is not captured."""
    try:
        with procfs.opened_mount(init_pid, SHARED_MEMORY, "tmpfs") as source:
            return filesystem.total_bytes(beneath.name_of(source)) - filesystem.free_bytes(beneath.name_of(source))
    except OSError as error:
        if error.errno != beneath.MISPLACED:
            raise
        return 0
