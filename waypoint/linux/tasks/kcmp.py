"""Finding out which processes share a part of themselves (kcmp(2), clone(2))."""

import functools
import itertools
from collections.abc import Iterable
from typing import Literal

from waypoint.linux.calls import libc

Part = Literal["VM", "FILES", "FS"]
"""Memory; open files; working directory and root. The names are those of CLONE_VM, ..., CRIU uses them too."""
_KINDS: dict[Part, int] = {"VM": 1, "FILES": 2, "FS": 3}
PARTS = tuple(_KINDS)
_SEMAPHORES = 6  # KCMP_SYSVSEM
_ORDER = {0: 0, 1: -1, 2: 1}  # what kcmp(2) returns for equal, less, greater


def sharing(pids: Iterable[int], part: Part) -> list[int]:
    """Those of the processes `pids` that share the part with another one of them, without one of each group. Raises
    OSError if a process has ended.
    """

    def compare(one: int, other: int) -> int:
        return _ORDER[libc.syscall("kcmp", one, other, _KINDS[part], 0, 0)]

    ordered = sorted(pids, key=functools.cmp_to_key(compare))
    return [other for one, other in itertools.pairwise(ordered) if not compare(one, other)]


def has_own(pid: int, tid: int, part: Part) -> bool:
    """Return True if thread `tid` does not share the part with process `pid`. Raises OSError if one has ended."""
    return libc.syscall("kcmp", pid, tid, _KINDS[part], 0, 0) != 0


def undoes_semaphores(pid: int, never: int) -> bool:
    """Return True if process `pid` may have used SEM_UNDO (semop(2)): it has done so or has, or had, several threads,
    and the process `never` has not. Raises OSError.
    """
    return libc.syscall("kcmp", pid, never, _SEMAPHORES, 0, 0) != 0
