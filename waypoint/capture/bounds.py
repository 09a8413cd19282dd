"""Limits on what a capture may cost, because a session's processes can request captures again and again."""

import errno
import os

from waypoint.capture.layers.layer import Area
from waypoint.capture.layers.subject import Subject
from waypoint.linux.storage import beneath, filesystem
from waypoint.linux.tasks import procfs
from waypoint.model.errors import CannotCapture, Failed
from waypoint.model.paths import SHARED_MEMORY
from waypoint.model.records import Tier
from waypoint.records import callers
from waypoint.upper.contract import NEXT_STEPS, mib

MAX_OPEN_FILES = 500_000
"""The highest number of open files of all processes together: more than one program can have. Examining one takes some
microseconds.
"""
_OTHER_IMAGES, _IMAGES_OF_ONE = 2 << 20, 256 << 10
"""More than the images other than memory have in bytes, in all and for each process."""


def check(area: Area, subject: Subject, tier: Tier | None) -> int:
    """Return how many bytes of images and shared memory the capture writes at most. Raises CannotCapture for more than
    MAX_OPEN_FILES open files, Failed if there is no room for the capture.
    """
    processes = subject.processes() if tier != "files" else []
    if tier != "files":
        check_open_files(processes)
    saved = processes if tier != "respawn" else []
    shared = _shared_memory(subject.facts.init_pid)
    _check_room(area, subject, sum(map(procfs.own_bytes, saved)) + shared)
    return sum(map(procfs.most_image_bytes, saved)) + shared + _OTHER_IMAGES + len(saved) * _IMAGES_OF_ONE


def check_open_files(processes: list[int]) -> None:
    """Raise CannotCapture for more than MAX_OPEN_FILES open files."""
    count = 0
    for pid in processes:
        count += procfs.count_open_files(pid)
        if count > MAX_OPEN_FILES:
            said = f"the processes have more than {MAX_OPEN_FILES} open files"
            next_step = "end some of the processes, or capture without processes: --tier files"
            raise CannotCapture("dump", "the processes", said, next_step, code="too-many-files")


def _check_room(area: Area, subject: Subject, needed: int) -> None:
    """Raise Failed if neither the disk nor the hot area in memory has room for `needed` bytes of memory. The captures
    of users must leave as much free disk space as the pool must leave when it grows: the session's own limits do not
    count this memory.
    """
    on = f"branch {subject.facts.branch}"
    if not callers.is_root(callers.current()):
        area.check_space(needed, "memory", "capture", on)
    elif not area.has_room(needed):
        free = filesystem.free_bytes(area.hot.folder)
        said = (
            f"{os.strerror(errno.ENOSPC)}: it has {mib(needed)} of memory, the disk of the home has {mib(free)} free, "
            "and the memory for captures is too small, too"
        )
        raise Failed("capture", on, said, NEXT_STEPS[errno.ENOSPC], code="disk-full")


def _shared_memory(init_pid: int) -> int:
    """Return the bytes in the session's /dev/shm; 0 if the session has replaced it, because it is then not captured."""
    try:
        with procfs.opened_mount(init_pid, SHARED_MEMORY, "tmpfs") as source:
            return filesystem.total_bytes(beneath.name_of(source)) - filesystem.free_bytes(beneath.name_of(source))
    except OSError as error:
        if error.errno != beneath.MISPLACED:
            raise
        return 0
