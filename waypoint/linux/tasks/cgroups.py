"""Control groups: membership, freezing, killing, accounting.

Freezing and killing use cgroup2, which every supported host mounts (some only for systemd). The controllers are in
cgroup2, too (unified hosts), or in the version 1 hierarchies (hybrid hosts). Sources: cgroups(7), the kernel's
admin-guide/cgroup-v2.rst and cgroup-v1/.

Where a user gets no control groups, process_groups.py takes the place of cgroup2 for freezing, killing and membership.
A path tells which of them a group is.
"""

import contextlib
import errno
import functools
import os
import select
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.storage.mounts import read_mounts
from waypoint.linux.tasks import process_groups, procfs, signals

EVENT_TIMEOUT_S = 5.0
_END_TIMEOUT_S = 30.0  # killed processes end after their disk operations: 5 s were too few beside 12 busy sessions
# The kernel delays a notification of cgroup.events that follows the previous one within 10 ms
# (CGROUP_FILE_NOTIFY_MIN_INTV). In that time the file is read every _READ_INTERVAL_S instead.
_NOTIFY_DELAY_S = 0.012
_READ_INTERVAL_S = 0.0001
_CREATE_ATTEMPTS = 10
_PROCESS_END_S = 0.005  # added to the timeout for each killed process: on a busy machine, many processes end slowly
_RECLAIMABLE = frozenset(("inactive_file", "active_file", "slab_reclaimable"))  # of memory.stat
_LINKS_OF_LEAF = 2  # the link count of a group's folder without groups below


class Hierarchies(NamedTuple):
    """The mount points of the cgroup hierarchies. `unified`: cgroup2. `legacy`: the version 1 hierarchy by
    controller.
    """

    unified: str
    legacy: dict[str, str]


@functools.cache
def find_hierarchies() -> Hierarchies:
    """Return the hierarchies that are mounted in the caller's mount namespace. Raises FileNotFoundError if cgroup2 is
    not mounted.
    """
    unified = ""
    legacy: dict[str, str] = {}
    for mount in read_mounts():
        if mount.fstype == "cgroup2" and not unified:
            unified = mount.mount_point
        elif mount.fstype == "cgroup":
            for controller in mount.super_options:
                legacy.setdefault(controller, mount.mount_point)
    if not unified:
        raise FileNotFoundError(errno.ENOENT, "no cgroup2 is mounted", "/proc/self/mountinfo")
    return Hierarchies(unified, legacy)


def write(path: str, name: str, text: str) -> None:
    """Write `text` to the file `name` of the group at `path`."""
    with open(f"{path}/{name}", "w") as file:
        file.write(text)


def read(path: str, name: str) -> str:
    """Return the content of the file `name` of the group at `path`. Raises FileNotFoundError if there is no such file,
    OSError ENODEV if the group was removed after the file was opened.
    """
    with open(f"{path}/{name}") as file:
        return file.read()


def create(path: str) -> None:
    """Create the group at `path` and the missing groups above. Raises no error if the group exists."""
    for left in reversed(range(_CREATE_ATTEMPTS)):
        try:
            os.makedirs(path, exist_ok=True)
        except FileNotFoundError:  # a group above was empty, and another process has removed it
            if not left:
                raise
        else:
            return


def delegate(parent: str, controllers: tuple[str, ...]) -> list[str]:
    """Enable those of `controllers` that are available for the children of the cgroup2 group `parent`. Return the names
    of those that are enabled afterwards.

    A controller stays disabled if the kernel refuses to enable it, for example because another manager owns the group.
    """
    available = read(parent, "cgroup.controllers").split()
    for controller in controllers:
        if controller in available:
            with contextlib.suppress(OSError):
                write(parent, "cgroup.subtree_control", f"+{controller}")
    return [name for name in read(parent, "cgroup.subtree_control").split() if name in controllers]


def enter(path: str) -> None:
    """Move the calling process into the group at `path`, with all its threads."""
    if process_groups.is_one(path):
        process_groups.add(path, os.getpid())
        return
    write(path, "cgroup.procs", "0")


def own_group(root: str, controller: str = "") -> str:
    """Return the path of this process's group in cgroup2, or in the version 1 hierarchy of `controller`. `root`: the
    mount point of that hierarchy.
    """
    with open("/proc/self/cgroup") as file:
        for line in file:
            _number, controllers, path = line.rstrip("\n").split(":", 2)
            if controller in controllers.split(","):
                return f"{root}{path}".rstrip("/")
    return root


def children(group: str | int) -> list[str]:
    """Return the names of the groups directly below `group`, a path or a descriptor."""
    with os.scandir(group) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def members(path: str) -> list[int]:
    """Return the pids, in the caller's pid namespace, of the processes in the group and in the groups below. Empty if
    the group does not exist.
    """
    if process_groups.is_one(path):
        return process_groups.members(path)
    return _listed(path, "cgroup.procs")


def threads(path: str) -> list[int]:
    """Like `members`, but the ids of all their threads."""
    if process_groups.is_one(path):
        return [tid for pid in members(path) for tid in _threads(pid)]
    return _listed(path, "cgroup.threads")


def _threads(pid: int) -> list[int]:
    try:
        return procfs.threads(pid)
    except ProcessLookupError:
        return []


def _listed(path: str, name: str) -> list[int]:
    found: list[int] = []
    with _unless_gone(), _opened(path) as group:
        _collect(group, name, found)
    return found


def _collect(group: int, name: str, found: list[int]) -> None:
    with _unless_gone(), open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=group)) as file:
        found += map(int, file.read().split())
    if os.fstat(group).st_nlink > _LINKS_OF_LEAF:  # a session may have created groups below its own
        for child in children(group):
            with _unless_gone(), _opened(child, group) as below:
                _collect(below, name, found)


@contextlib.contextmanager
def _opened(path: str, above: int | None = None) -> Iterator[int]:
    """Open a descriptor of the group at `path` for the `with` block. `path` is relative to the descriptor `above`, if
    given.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Ignore the errors of the kernel for a group that does not exist, or was removed after its file was opened."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def freeze(path: str) -> None:
    """Freeze every process of the cgroup2 group. Return when the kernel reports all of them as frozen (about 0.5 ms).

    Raises TimeoutError after EVENT_TIMEOUT_S seconds; the kernel then continues to freeze the group.
    """
    if process_groups.is_one(path):
        process_groups.freeze(path, EVENT_TIMEOUT_S)
        return
    hold_frozen(path)
    _wait_event(path, "frozen 1")


def wait_frozen(path: str, timeout_s: float) -> None:
    """Return when the kernel reports all processes of a group that is being frozen as frozen. Raises TimeoutError."""
    _wait_event(path, "frozen 1", timeout_s)


def hold_frozen(path: str) -> None:
    """Let the kernel freeze every process of the cgroup2 group, and do not wait for it. A process that a tracer has
    stopped is frozen when the tracer continues it, detaches or dies.
    """
    if process_groups.is_one(path):
        process_groups.freeze(path, EVENT_TIMEOUT_S)
        return
    write(path, "cgroup.freeze", "1")


def thaw(path: str) -> None:
    """Let the processes of the cgroup2 group run again. Raises no error if the group does not exist."""
    if process_groups.is_one(path):
        process_groups.thaw(path)
        return
    with _unless_gone():
        write(path, "cgroup.freeze", "0")


@contextlib.contextmanager
def frozen(path: str) -> Iterator[None]:
    """Freeze the group inside the `with` block. A group that was frozen before the block stays frozen after it."""
    if process_groups.is_one(path):
        was_frozen = process_groups.is_frozen(path)
    else:
        was_frozen = read(path, "cgroup.freeze").strip() == "1"
    freeze(path)
    try:
        yield
    finally:
        if not was_frozen:
            thaw(path)


def end(path: str) -> None:
    """Kill every process of the group and of the groups below, wait until all have ended, and remove the groups.

    Raises no error if the group does not exist. Raises TimeoutError after _END_TIMEOUT_S seconds, later for thousands
    of processes; the groups then still exist.

    This function kills and removes, because a killed group must not be used again: clone3(2) with CLONE_INTO_CGROUP
    compares how often the caller's group and the child's group were killed, and if the numbers differ, kills the child
    at once (Linux 6.18, kernel/cgroup/cgroup.c, `kill_seq`). A new group at the same path, or below a killed group, can
    be used.
    """
    if process_groups.is_one(path):
        process_groups.end(path, _END_TIMEOUT_S)
        return
    with _unless_gone():
        if "populated 1" in read(path, "cgroup.events"):
            count = len(members(path))
            _kill(path)
            wait_empty(path, _END_TIMEOUT_S + _PROCESS_END_S * count)
    for group in (*twins(path), path):  # remove `path` last, so that after a failure a second call finds all groups
        with _unless_gone(), _opened(os.path.dirname(group)) as above:
            _remove_all(above, os.path.basename(group))


def _remove_all(above: int, name: str) -> None:
    """Remove the group `name` in the group with the descriptor `above`, and all groups below. Uses descriptors, since a
    session can create groups whose paths are longer than the kernel accepts.
    """
    with _unless_gone():
        with _opened(name, above) as group:
            for below in children(group):
                _remove_all(group, below)
        os.rmdir(name, dir_fd=above)


def twins(path: str) -> list[str]:
    """Return the groups of the version 1 hierarchies that correspond to the cgroup2 group at `path`: each has the same
    path below its hierarchy's mount point.
    """
    if process_groups.is_one(path):
        return []
    hierarchies = find_hierarchies()
    within = path.removeprefix(hierarchies.unified)
    roots = sorted({*hierarchies.legacy.values()})
    return [f"{root}{within}" for root in roots if within != path and os.path.isdir(f"{root}{within}")]


def confine(path: str, *, depth: int, groups: int | None = None) -> None:
    """Limit the depth and the number of the groups that may be created below the cgroup2 group at `path`. This is
    needed since a session whose root is the host's root can create groups in its own group, and each takes kernel
    memory.
    """
    if process_groups.is_one(path):
        return
    write(path, "cgroup.max.depth", str(depth))
    if groups is not None:
        write(path, "cgroup.max.descendants", str(groups))


def _kill(path: str) -> None:
    """Send SIGKILL to every process of the group at `path` and of the groups below, including frozen processes."""
    try:
        write(path, "cgroup.kill", "1")
    except FileNotFoundError:  # cgroup.kill exists since Linux 5.14
        for pid in members(path):
            signals.send(pid, signal.SIGKILL, functools.partial(members, path))


def wait_empty(path: str, timeout_s: float = EVENT_TIMEOUT_S) -> None:
    """Block until the group has no process or does not exist. Raises TimeoutError after `timeout_s` seconds."""
    if process_groups.is_one(path):
        process_groups.wait_empty(path, timeout_s)
        return
    with contextlib.suppress(FileNotFoundError):
        _wait_event(path, "populated 0", timeout_s)


def note_first(path: str, pid: int) -> None:
    """Note that the process, whose parent is in the group, is the first of a session. In cgroup2 it is a member
    already.
    """
    if process_groups.is_one(path):
        process_groups.add(path, pid)


def remove(path: str) -> None:
    """Remove a group without processes. Raises no error if the group does not exist."""
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


def memory_bytes(path: str) -> int | None:
    """Return the bytes that the memory controller (of either version) charges to the group, or None without that
    controller.
    """
    if process_groups.is_one(path):
        return process_groups.memory_bytes(path)
    for name in ("memory.current", "memory.usage_in_bytes"):
        with contextlib.suppress(FileNotFoundError):
            return int(read(path, name))
    return None


def free_memory_bytes(path: str) -> int | None:
    """Return how much more memory the limits of the cgroup2 group and of the groups above allow; None without a limit.
    Counts the page cache as free.
    """
    found = []
    for group, most in _limits(path, "memory.max"):
        cache = sum(
            int(words[1])
            for words in map(str.split, read(group, "memory.stat").splitlines())
            if words[0] in _RECLAIMABLE
        )
        found.append(most - int(read(group, "memory.current")) + cache)
    return min(found, default=None)


def free_processes(path: str) -> int | None:
    """Return how many more processes and threads the limits of the cgroup2 group and of the groups above allow; None
    without a limit.
    """
    return min((most - int(read(group, "pids.current")) for group, most in _limits(path, "pids.max")), default=None)


def _limits(path: str, name: str) -> Iterator[tuple[str, int]]:
    """The groups, from `path` upwards, that have the limit `name`, and the limit."""
    if process_groups.is_one(path):
        return
    root = find_hierarchies().unified
    while path.startswith(root):
        with contextlib.suppress(FileNotFoundError, ValueError):  # the controller is not enabled; "max"
            yield path, int(read(path, name))
        path = os.path.dirname(path)


def _wait_event(path: str, wanted: str, timeout_s: float = EVENT_TIMEOUT_S) -> None:
    """Block until cgroup.events contains `wanted`. The kernel reports POLLPRI for this file when a value in it changes.

    Raises TimeoutError after `timeout_s` seconds.
    """
    begun = time.monotonic()
    fd = os.open(f"{path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        while wanted.encode() not in os.pread(fd, 4096, 0):
            waited_s = time.monotonic() - begun
            if waited_s >= timeout_s:
                raise TimeoutError(errno.ETIMEDOUT, f"waited {timeout_s:g} s for {wanted!r}", path)
            if waited_s < _NOTIFY_DELAY_S:
                time.sleep(_READ_INTERVAL_S)
            else:
                poll.poll(1000 * (timeout_s - waited_s))
    finally:
        os.close(fd)


def cpu_usec(path: str) -> int:
    """Return the processor time in microseconds that the cgroup2 group has used, or 0 if the group does not exist.

    This reads cpu.stat, which needs no controller.
    """
    if process_groups.is_one(path):
        return process_groups.cpu_usec(path)
    try:
        for line in read(path, "cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            if name == "usage_usec":
                return int(value)
    except FileNotFoundError:
        return 0
    return 0
