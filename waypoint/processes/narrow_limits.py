"""Giving CRIU room in processes that have reached a limit of their own (setrlimit(2)).

CRIU runs its own code in each process that it dumps, for which the process needs some memory and a few descriptors. A
soft limit is raised for the time of the dump, while the process is frozen. A hard limit can be raised only with
CAP_SYS_RESOURCE.
"""

import contextlib
import resource
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from waypoint.linux.calls import hard_limits
from waypoint.linux.tasks import mappings, procfs
from waypoint.model.records import LeftOut

NAME = "limit"
_MEMORY_BYTES = 1 << 20
_DESCRIPTORS = 16
_UNLIMITED = resource.RLIM_INFINITY


class Narrow(NamedTuple):
    """A limit that leaves CRIU no room. `needed`: the least value that does."""

    pid: int
    kind: int
    soft: int
    hard: int
    needed: int

    @property
    def is_hard(self) -> bool:
        """Whether it cannot be raised."""
        return self.hard != _UNLIMITED and self.hard < self.needed and not hard_limits.may_raise()


def find(pids: Iterable[int]) -> list[Narrow]:
    """The narrow limits of the processes. Processes that have ended, or may not be inspected, are skipped. Takes
    0.03 ms for each process.
    """
    return [one for pid in pids for one in of_process(pid)]


def of_process(pid: int) -> Iterator[Narrow]:
    with contextlib.suppress(OSError):
        pages = procfs.memory_pages(pid)
        used = {
            resource.RLIMIT_AS: (pages.mapped * mappings.PAGE, _MEMORY_BYTES),
            resource.RLIMIT_DATA: (pages.data * mappings.PAGE, _MEMORY_BYTES),
            resource.RLIMIT_NOFILE: (procfs.count_open_files(pid), _DESCRIPTORS),
        }
        for kind, (number, room) in used.items():
            soft, hard = resource.prlimit(pid, kind)
            if soft != _UNLIMITED and soft < number + room:
                yield Narrow(pid, kind, soft, hard, number + room)


def widen(narrow: Iterable[Narrow]) -> None:
    """Raise the limits of the processes, which are frozen, as far as possible."""
    for one in narrow:
        hard = one.hard if one.hard == _UNLIMITED else max(one.hard, one.needed)
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(one.pid, one.kind, (one.needed, hard))


def restore(narrow: Iterable[Narrow]) -> None:
    """Set the limits as they were before `widen`."""
    for one in narrow:
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(one.pid, one.kind, (one.soft, one.hard))


def to_keep(narrow: Iterable[Narrow]) -> list[LeftOut]:
    """The limits for `left_out.set_again`: CRIU's images have the raised ones."""
    found = []
    for one in narrow:
        with contextlib.suppress(OSError):
            found.append(LeftOut(procfs.inner_pid(one.pid), one.kind, NAME, f"{one.soft} {one.hard}"))
    return found


def give(pid: int, kind: int, value: str) -> None:
    """Set the limit that `to_keep` has noted. Raises OSError, ValueError."""
    soft, hard = map(int, value.split())
    resource.prlimit(pid, kind, (soft, hard))
