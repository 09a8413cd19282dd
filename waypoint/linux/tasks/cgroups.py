"""Control groups: membership, freezing, killing, accounting.

Freezing and killing use cgroup2, which every supported host mounts, if only for systemd. The controllers may be in
cgroup2 too (unified hosts) or in the version 1 hierarchies (hybrid hosts). Sources: cgroups(7), the kernel's
admin-guide/cgroup-v2.rst and cgroup-v1/.
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

EVENT_TIMEOUT_S = 5.0
# The kernel delays a notification of cgroup.events that comes less than 10 ms after the previous one
# (CGROUP_FILE_NOTIFY_MIN_INTV). For that time the file is read every _READ_INTERVAL_S instead.
_NOTIFY_DELAY_S = 0.012
_READ_INTERVAL_S = 0.0001
_CREATE_ATTEMPTS = 10
_PROCESS_END_S = 0.005  # for a killed process to end, of many on a busy machine
_LINKS_OF_LEAF = 2  # of the folder of a group that has no groups below it


class Hierarchies(NamedTuple):
    """Where cgroup hierarchies are mounted. `unified`: cgroup2. `legacy`: by controller, its version 1 hierarchy."""

    unified: str
    legacy: dict[str, str]


@functools.cache
def find_hierarchies() -> Hierarchies:
    """The hierarchies that are mounted in the caller's view, looked for once. Raises FileNotFoundError if cgroup2 is
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
    """The content of the file `name` of the group at `path`. Raises FileNotFoundError, or OSError ENODEV if removed."""
    with open(f"{path}/{name}") as file:
        return file.read()


def create(path: str) -> None:
    """Make the group at `path` and the missing groups above it. No error if it exists."""
    for left in reversed(range(_CREATE_ATTEMPTS)):
        try:
            os.makedirs(path, exist_ok=True)
        except FileNotFoundError:  # a group above was empty, and its last user has removed it in between
            if not left:
                raise
        else:
            return


def delegate(parent: str, controllers: tuple[str, ...]) -> list[str]:
    """Enable the available ones of `controllers` for the children of cgroup2 group `parent`; return the enabled ones.

    A controller stays off if the kernel refuses to enable it, for example because another manager owns the group.
    """
    available = read(parent, "cgroup.controllers").split()
    for controller in controllers:
        if controller in available:
            with contextlib.suppress(OSError):
                write(parent, "cgroup.subtree_control", f"+{controller}")
    return [name for name in read(parent, "cgroup.subtree_control").split() if name in controllers]


def enter(path: str) -> None:
    """Move the calling process into the group at `path`, with all its threads."""
    write(path, "cgroup.procs", "0")


def own_group(root: str, controller: str = "") -> str:
    """The path of this process's group in cgroup2, or in the version 1 hierarchy of `controller`. `root`: where that is
    mounted.
    """
    with open("/proc/self/cgroup") as file:
        for line in file:
            _number, controllers, path = line.rstrip("\n").split(":", 2)
            if controller in controllers.split(","):
                return f"{root}{path}".rstrip("/")
    return root


def children(group: str | int) -> list[str]:
    """The names of the groups right below `group`, a path or a descriptor."""
    with os.scandir(group) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def members(path: str) -> list[int]:
    """The pids of the processes of the group and of those below it, as seen from the caller's pid namespace. Empty if
    the group is gone.
    """
    found: list[int] = []
    with _unless_gone(), _opened(path) as group:
        _collect_members(group, found)
    return found


def _collect_members(group: int, found: list[int]) -> None:
    with _unless_gone(), open(os.open("cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=group)) as file:
        found += map(int, file.read().split())
    if os.fstat(group).st_nlink > _LINKS_OF_LEAF:  # a session may have made groups in its own
        for name in children(group):
            with _unless_gone(), _opened(name, group) as below:
                _collect_members(below, found)


@contextlib.contextmanager
def _opened(path: str, above: int | None = None) -> Iterator[int]:
    """A descriptor of the group at `path`, relative to the group of which `above` is one, during the `with` block."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Ignore the errors by which the kernel says that a group is gone, or was removed after its file was opened."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def freeze(path: str) -> None:
    """Freeze every process of the cgroup2 group; return when the kernel reports all of them frozen (about 0.5 ms).

    Raises TimeoutError after EVENT_TIMEOUT_S seconds; the group is then still being frozen.
    """
    hold_frozen(path)
    _wait_event(path, "frozen 1")


def hold_frozen(path: str) -> None:
    """Have every process of the cgroup2 group freeze as soon as it would run. Does not wait: a process that a tracer
    holds stops where it is, and is frozen when the tracer lets it go or dies.
    """
    write(path, "cgroup.freeze", "1")


def thaw(path: str) -> None:
    """Let the processes of the cgroup2 group run again. No error if the group is gone."""
    with _unless_gone():
        write(path, "cgroup.freeze", "0")


@contextlib.contextmanager
def frozen(path: str) -> Iterator[None]:
    """Freeze the group for the `with`. A group that was frozen before stays frozen afterwards."""
    was_frozen = read(path, "cgroup.freeze").strip() == "1"
    freeze(path)
    try:
        yield
    finally:
        if not was_frozen:
            thaw(path)


def end(path: str) -> None:
    """Kill every process of the group and of the groups below it, wait until none is left, and remove the groups.

    No error if the group is gone. Raises TimeoutError after EVENT_TIMEOUT_S seconds, later if there are thousands of
    processes; the groups are then still there.

    One function kills and removes, because a group that was killed must not be used again: clone3(2) with
    CLONE_INTO_CGROUP compares how often the caller's group and the child's group were killed, and if the numbers differ
    it kills the child at once (Linux 6.18, kernel/cgroup/cgroup.c, `kill_seq`). A group that is made anew at the same
    path can be used, and so can a new group below a killed one.
    """
    with _unless_gone():
        if "populated 1" in read(path, "cgroup.events"):
            count = len(members(path))
            _kill(path)
            wait_empty(path, EVENT_TIMEOUT_S + _PROCESS_END_S * count)
    for group in (*twins(path), path):  # by the last of them the others are found again
        with _unless_gone(), _opened(os.path.dirname(group)) as above:
            _remove_all(above, os.path.basename(group))


def _remove_all(above: int, name: str) -> None:
    """Remove the group `name` below the group of which `above` is a descriptor, and all groups below it: without their
    paths, which a session can have made longer than the kernel takes.
    """
    with _unless_gone():
        with _opened(name, above) as group:
            for below in children(group):
                _remove_all(group, below)
        os.rmdir(name, dir_fd=above)


def twins(path: str) -> list[str]:
    """The groups of the version 1 hierarchies that have the same path, there, as the cgroup2 group at `path` here."""
    hierarchies = find_hierarchies()
    within = path.removeprefix(hierarchies.unified)
    roots = sorted({*hierarchies.legacy.values()})
    return [f"{root}{within}" for root in roots if within != path and os.path.isdir(f"{root}{within}")]


def confine(path: str, *, depth: int, groups: int | None = None) -> None:
    """Bound the groups that may be made below the cgroup2 group at `path`: how many below each other, and how many in
    all. A session whose root is the host's can make groups in its own, each of which the kernel keeps in memory.
    """
    write(path, "cgroup.max.depth", str(depth))
    if groups is not None:
        write(path, "cgroup.max.descendants", str(groups))


def _kill(path: str) -> None:
    """Send SIGKILL to every process of the group at `path` and of those below it, frozen processes included."""
    try:
        write(path, "cgroup.kill", "1")
    except FileNotFoundError:  # cgroup.kill exists since Linux 5.14
        for pid in members(path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_empty(path: str, timeout_s: float = EVENT_TIMEOUT_S) -> None:
    """Block until no process is in the group, or it is gone. Raises TimeoutError after `timeout_s` seconds."""
    with contextlib.suppress(FileNotFoundError):
        _wait_event(path, "populated 0", timeout_s)


def remove(path: str) -> None:
    """Remove a group without processes. No error if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


def memory_bytes(path: str) -> int | None:
    """Memory that the memory controller (of either version) charges to the group; None without that controller."""
    for name in ("memory.current", "memory.usage_in_bytes"):
        with contextlib.suppress(FileNotFoundError):
            return int(read(path, name))
    return None


def _wait_event(path: str, wanted: str, timeout_s: float = EVENT_TIMEOUT_S) -> None:
    """Block until `wanted` is in cgroup.events, which raises POLLPRI when one of its values changes.

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
    """Microseconds of processor time that the cgroup2 group has used so far; 0 if the group is gone.

    cpu.stat needs no controller.
    """
    try:
        for line in read(path, "cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            if name == "usage_usec":
                return int(value)
    except FileNotFoundError:
        return 0
    return 0
