"""The hard resource limits of processes (getrlimit(2)): how far each may raise its own.

Only CAP_SYS_RESOURCE over the machine raises one. CRIU has it nowhere in a session, and a limit that CRIU may not set
stays as that of CRIU itself, without a word.
"""

import contextlib
import math
import resource
from collections.abc import Iterable, Mapping

_KINDS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


def highest(pids: Iterable[int]) -> dict[str, int]:
    """The highest hard limit of each kind (RLIMIT_NOFILE) that one of the processes has; -1 is none. What has ended, or
    may not be looked at, is passed over.
    """
    found: dict[str, int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            for name, kind in _KINDS.items():
                found[name] = max(found.get(name, 0), resource.prlimit(pid, kind)[1], key=_height)
    return found


def most_open_files() -> int:
    """The highest limit of open files that the kernel lets anybody have (fs.nr_open)."""
    with open("/proc/sys/fs/nr_open") as file:
        return int(file.read())


def above(wanted: Mapping[str, int], had: Mapping[str, int]) -> dict[str, int]:
    """Those limits of `wanted` that are higher than in `had`."""
    return {name: most for name, most in wanted.items() if name in had and _height(most) > _height(had[name])}


def at_most(wanted: Mapping[str, int], most: Mapping[int, int]) -> dict[str, int]:
    """Those limits of `wanted` that are in `most`, which has them by their numbers, and none higher than there."""
    pairs = ((name, limit, most.get(_KINDS.get(name, -1))) for name, limit in wanted.items())
    return {name: min(limit, its, key=_height) for name, limit, its in pairs if its is not None}


def raise_own(wanted: Mapping[str, int]) -> None:
    """Raise this process's own hard limits to those of `wanted`, as far as it may."""
    for name, most in wanted.items():
        kind = _KINDS.get(name)
        if kind is not None:
            soft, hard = resource.getrlimit(kind)
            if _height(most) > _height(hard):
                with contextlib.suppress(ValueError, OSError):  # without CAP_SYS_RESOURCE, or above fs.nr_open
                    resource.setrlimit(kind, (soft, most))


def _height(limit: int) -> float:
    return math.inf if limit == resource.RLIM_INFINITY else limit
