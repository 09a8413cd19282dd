"""How much memory this process may use: the machine's, or less, if a group that it is in has a limit (a container).

Sources: the kernel's admin-guide/cgroup-v2.rst (memory.max) and cgroup-v1/memory.rst (memory.limit_in_bytes).
"""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.calls import machine
from waypoint.linux.tasks import cgroups


class _Names(NamedTuple):
    """Of the files of a group: its limit, what it uses, and in memory.stat what of that is the page cache, which the
    kernel can take back. MemAvailable counts nearly all of that as available, too.
    """

    limit: str
    used: str
    cached: tuple[str, ...]


_UNIFIED = _Names("memory.max", "memory.current", ("inactive_file", "active_file"))
_LEGACY = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def total_bytes() -> int:
    """The machine's memory, or the least limit of the groups that this process is in, as far as they can be seen."""
    return min([machine.total_memory_bytes(), *(limit for limit, _ in _bounds())])


def available_bytes() -> int:
    """What programs can still use without swapping, of the machine's memory and of these limits, whichever is less."""
    return min([machine.available_memory_bytes(), *(limit - used for limit, used in _bounds())])


def _bounds() -> Iterator[tuple[int, int]]:
    """The limits that hold for this process, each with what is used of it, without what the kernel can take back."""
    for group, names in _groups():
        with contextlib.suppress(OSError, ValueError):  # the root's group has no such file; "max" is none
            limit = int(cgroups.read(group, names.limit))
            facts = dict(line.split() for line in cgroups.read(group, "memory.stat").splitlines())
            cached = sum(int(facts.get(name, 0)) for name in names.cached)
            yield limit, int(cgroups.read(group, names.used)) - cached


def _groups() -> Iterator[tuple[str, _Names]]:
    """The groups that count this process's memory: its own, and those above it that are mounted here."""
    with contextlib.suppress(OSError):
        found = cgroups.find_hierarchies()
        roots = [(found.unified, "", _UNIFIED)]
        if "memory" in found.legacy:
            roots.append((found.legacy["memory"], "memory", _LEGACY))
        for root, controller, names in roots:
            group = os.path.normpath(cgroups.own_group(root, controller))
            while group.startswith(f"{root}/"):  # else it is above what is mounted
                yield group, names
                group = os.path.dirname(group)
            yield root, names
