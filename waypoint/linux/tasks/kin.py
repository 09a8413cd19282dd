"""A session's processes as one group, without a cgroup: all descendants of the session's pid 1, which adopts whoever
loses its parent, and whose end ends them all (pid_namespaces(7)).

The group is a folder with the note FIRST: the pid and the start time of that process. halting.py freezes and ends it.
Nothing is counted or limited.
"""

import contextlib
import os

from waypoint.linux.tasks import procfs

FOLDER = "without-cgroups"
"""The name of the folder of a home's groups, by which a path is known as one of a group without a cgroup."""

_FIRST = "first"


def is_bare(path: str) -> bool:
    """Whether `path` is that of a group without a cgroup."""
    return f"/{FOLDER}/" in f"{path}/"


def note_first(path: str, pid: int) -> None:
    """Note `pid` as the process whose descendants the group is, unless the group has one. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with contextlib.suppress(FileExistsError), open(os.open(f"{path}/{_FIRST}", flags, 0o600), "w") as note:
        note.write(f"{pid} {procfs.start_ticks(pid)}\n")


def first_of(path: str) -> int | None:
    """The pid of the group's first process; None if it has none, or that has ended."""
    try:
        with open(f"{path}/{_FIRST}") as note:
            pid, start = map(int, note.read().split())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return pid if procfs.is_same(pid, start) else None


def members(path: str) -> list[int]:
    """The pids of the group's processes, the first one first; none if it has ended."""
    first = first_of(path)
    return [] if first is None else procfs.family(first)
