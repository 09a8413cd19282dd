"""The resource limits of processes (getrlimit(2)).

Raising a hard limit needs CAP_SYS_RESOURCE in the initial user namespace. A CRIU in a session lacks this capability;
where it cannot set a restored process's limit, the process silently keeps CRIU's own limit.
"""

import contextlib
import functools
import math
import os
import resource
from collections.abc import Iterable, Mapping

_CAP_SYS_RESOURCE = 24
_KINDS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


def highest(pids: Iterable[int]) -> dict[str, int]:
    """The highest hard limit of each kind (such as RLIMIT_NOFILE) among the processes; -1: unlimited. Processes that
    have ended or may not be inspected are skipped.
    """
    found: dict[str, int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            for name, kind in _KINDS.items():
                found[name] = max(found.get(name, 0), resource.prlimit(pid, kind)[1], key=_height)
    return found


def most_open_files() -> int:
    """The highest limit of open files that the kernel allows (fs.nr_open)."""
    with open("/proc/sys/fs/nr_open") as file:
        return int(file.read())


def use_all_open_files() -> None:
    """Raise this process's soft limit of open files to its hard limit: the usual soft limit is 1024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def free_descriptors() -> int:
    """The number of files that this process can still open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd"))


@functools.cache
def may_raise() -> bool:
    """Return True if the caller may raise hard limits (CAP_SYS_RESOURCE)."""
    with open("/proc/self/status") as file:
        (effective,) = (line.split()[1] for line in file if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_RESOURCE & 1)


def above(wanted: Mapping[str, int], had: Mapping[str, int]) -> dict[str, int]:
    """Those limits of `wanted` that are higher than in `had`."""
    return {name: most for name, most in wanted.items() if name in had and _height(most) > _height(had[name])}


def raise_own(wanted: Mapping[str, int]) -> None:
    """Raise this process's hard limits to `wanted`, as far as permitted."""
    raise_for(0, wanted)


def raise_for(pid: int, wanted: Mapping[str, int]) -> None:
    """Raise the hard limits of process `pid` (0: the caller) to `wanted`, as far as permitted."""
    for name, most in wanted.items():
        kind = _KINDS.get(name)
        if kind is not None:
            soft, hard = resource.prlimit(pid, kind)
            if _height(most) > _height(hard):
                with contextlib.suppress(ValueError, OSError):  # without CAP_SYS_RESOURCE, or above fs.nr_open
                    resource.prlimit(pid, kind, (soft, most))


def _height(limit: int) -> float:
    return math.inf if limit == resource.RLIM_INFINITY else limit
