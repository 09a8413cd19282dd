"""Limits on what a capture may cost, because a session's processes can request captures again and again."""

from waypoint.capture.layers.layer import Area
from waypoint.capture.layers.subject import Subject
from waypoint.linux.storage import beneath, filesystem
from waypoint.linux.tasks import procfs
from waypoint.model.errors import CannotCapture
from waypoint.model.paths import SHARED_MEMORY
from waypoint.model.records import Tier
from waypoint.records import callers

MAX_OPEN_FILES = 500_000
"""The highest number of open files of all processes together: more than one program can have. Examining one takes some
microseconds.
"""


def check(area: Area, subject: Subject, tier: Tier | None) -> None:
    """Raise CannotCapture for more than MAX_OPEN_FILES open files, Failed if too little disk space would be left."""
    processes = subject.processes() if tier != "files" else []
    if tier != "files":
        check_open_files(processes)
    if not callers.is_root(callers.current()):
        _check_room(area, subject, processes if tier != "respawn" else [])


def check_open_files(processes: list[int]) -> None:
    """Raise CannotCapture for more than MAX_OPEN_FILES open files."""
    count = 0
    for pid in processes:
        count += procfs.count_open_files(pid)
        if count > MAX_OPEN_FILES:
            said = f"the processes have more than {MAX_OPEN_FILES} open files"
            next_step = "end some of the processes, or capture without processes: --tier files"
            raise CannotCapture("dump", "the processes", said, next_step, code="too-many-files")


def _check_room(area: Area, subject: Subject, processes: list[int]) -> None:
    """Raise Failed if saving the memory of the processes would leave less free disk space than the pool must leave when
    it grows. The session's own limits do not count this memory.
    """
    needed = sum(map(procfs.own_bytes, processes)) + _shared_memory(subject.facts.init_pid)
    area.check_space(needed, "memory", "capture", f"branch {subject.facts.branch}")


def _shared_memory(init_pid: int) -> int:
    """Return the bytes in the session's /dev/shm; 0 if the session has replaced it, because it is then not captured."""
    try:
        with procfs.opened_mount(init_pid, SHARED_MEMORY, "tmpfs") as source:
            return filesystem.total_bytes(beneath.name_of(source)) - filesystem.free_bytes(beneath.name_of(source))
    except OSError as error:
        if error.errno != beneath.MISPLACED:
            raise
        return 0
