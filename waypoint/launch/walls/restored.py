"""What CRIU has made of images is looked at before any of it runs.

Images say themselves in which namespaces their processes come back, with which ids, which capabilities and behind which
filter; and they may have come from elsewhere (import), or have been altered where they lie. CRIU asks none of that.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NamedTuple

from waypoint.linux.tasks import cgroups, namespaces, procfs
from waypoint.model.errors import StoreDamaged
from waypoint.model.records import IdMap

_KINDS = ("user", "pid", "mnt", "net", "ipc", "uts")
_CAPABILITIES = (b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb")
_FIELDS = (b"State:", b"Cap", b"Seccomp:")
_FILTER = b"2"  # SECCOMP_MODE_FILTER
_KEPT = sum(1 << number for number in namespaces.CAPABILITIES.values())


class TaskWalls(NamedTuple):
    """What the processes of a session must be behind. `ids`: the map of its ids. `own_network`: a network of its own.
    `filtered`: a filter of system calls.
    """

    ids: IdMap
    own_network: bool
    filtered: bool


def check_first(root: int, group: str, walls: TaskWalls) -> None:
    """As `check_tasks`, of the ids alone that the process `root` has, which is the only one yet: it goes on to make the
    session's mounts, and must not be somebody of the machine's then.
    """
    _check(root, group, walls, _lacking_of_first)


def check_tasks(root: int, group: str, walls: TaskWalls) -> None:
    """Look at the session whose pid 1 is `root`, as the host sees it, in the cgroup `group`. None of its processes
    runs; nothing of it is left to run if one lacks a wall: then all that is in the group, CRIU too, has been killed.
    0.1 ms for each process. Raises StoreDamaged; FileNotFoundError, as after that, if `root` has ended.
    """
    _check(root, group, walls, _lacking)


def _check(root: int, group: str, walls: TaskWalls, look: Callable[[int, TaskWalls], str]) -> None:
    try:
        lacking = look(root, walls)
    except FileNotFoundError:
        _kill(root, group)
        raise
    if lacking:
        _kill(root, group)
        said = f"{lacking}, and no session is captured so: its images are not what Waypoint wrote"
        raise StoreDamaged("bring back", "the processes", said)


def _kill(root: int, group: str) -> None:
    with contextlib.suppress(OSError):  # a group of an ordinary user's, which is none of the kernel's
        cgroups.hold_frozen(group)  # or those that CRIU holds would run when it ends
    for pid in {*procfs.family(root), *cgroups.members(group)}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _lacking_of_first(root: int, walls: TaskWalls) -> str:
    """Whether ids are missing to the process, in words; "" if they are not."""
    if namespaces.names(root, ("user",)) == namespaces.names(os.getpid(), ("user",)):
        return "they would have the machine's namespace user"
    mapped = namespaces.as_mapped(walls.ids.lines())
    return "" if namespaces.id_maps(root) == (mapped, mapped) else "they would have other ids"


def _lacking(root: int, walls: TaskWalls) -> str:
    """Which wall is missing, in words; "" if none is."""
    own, first = namespaces.names(os.getpid(), _KINDS), namespaces.names(root, _KINDS)
    shared = [kind for kind, ours, theirs in zip(_KINDS, own, first, strict=True) if ours == theirs]
    if shared and (shared != ["net"] or walls.own_network):
        return f"they would have the machine's namespace {shared[0]}"
    if walls.own_network and not namespaces.is_own(root, "net"):
        return "they would have another network than their own"
    if said := _lacking_of_first(root, walls):
        return said
    tasks = [root]
    for pid in tasks:  # grows meanwhile
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if namespaces.names(pid, _KINDS) != first:
                return "one of them would be in other namespaces"
            for tid in procfs.threads(pid):
                if said := _lacking_in(procfs.lines(pid, f"task/{tid}/status"), walls):
                    return said
                tasks += map(int, procfs.raw(pid, f"task/{tid}/children", sys.maxsize).split())
    return ""


def _lacking_in(status: list[bytes], walls: TaskWalls) -> str:
    """As `_lacking`, of the thread with these lines of /proc/PID/status."""
    fields = dict(line.split(b":\t", 1) for line in status if line.startswith(_FIELDS))
    if fields[b"State"].startswith((b"Z", b"X")):  # it has ended
        return ""
    if any(int(fields[name], 16) & ~_KEPT for name in _CAPABILITIES):
        return "one of them would have more capabilities"
    return (
        "one of them would have no filter of system calls" if walls.filtered and fields[b"Seccomp"] != _FILTER else ""
    )
