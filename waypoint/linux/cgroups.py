"""Control groups: membership, freezing, killing, accounting.

Freezing and killing are cgroup2's, which every host of interest mounts somewhere, if only for systemd. Controllers may
be there too (unified hosts) or in the old hierarchies (hybrid hosts). Sources: cgroups(7), the kernel's
admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.mounts import read_mounts

EMPTY_POLL_S = 5.0
# The kernel holds a notice of cgroup.events back if it is less than 10 ms after the one before
# (CGROUP_FILE_NOTIFY_MIN_INTV): so long we look again and again.
_HELD_BACK_S = 0.012
_LOOK_S = 0.0001


class Hierarchies(NamedTuple):
    """Mount points. `unified` is cgroup2; `legacy` maps a controller to the old hierarchy that has it."""

    unified: str
    legacy: dict[str, str]


def find_hierarchies() -> Hierarchies:
    """Read from mountinfo. Raises FileNotFoundError if no cgroup2 is mounted."""
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
    with open(f"{path}/{name}", "w") as file:
        file.write(text)


def read(path: str, name: str) -> str:
    with open(f"{path}/{name}") as file:
        return file.read()


def create(path: str) -> None:
    """Make the group and its parents."""
    os.makedirs(path, exist_ok=True)


def delegate(parent: str, controllers: tuple[str, ...]) -> list[str]:
    """Switch on what is available of `controllers` for the children of cgroup2 group `parent`; return those that are
    on.

    A refusal (another manager owns the group) leaves the controller off.
    """
    available = read(parent, "cgroup.controllers").split()
    for controller in controllers:
        if controller in available:
            with contextlib.suppress(OSError):
                write(parent, "cgroup.subtree_control", f"+{controller}")
    return [name for name in read(parent, "cgroup.subtree_control").split() if name in controllers]


def enter(path: str) -> None:
    """Move the calling process (it must have one thread) into the group."""
    write(path, "cgroup.procs", "0")


def children(path: str) -> list[str]:
    """The names of the groups right below the group at `path`."""
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def members(path: str) -> list[int]:
    """Pids, as the caller's pid namespace sees them. Empty if the group is gone."""
    try:
        return [int(line) for line in read(path, "cgroup.procs").split()]
    except (FileNotFoundError, OSError) as error:
        if isinstance(error, FileNotFoundError) or getattr(error, "errno", 0) == errno.ENODEV:
            return []
        raise


def freeze(path: str) -> None:
    """Freeze every process of the cgroup2 group; return once the kernel says that all are (some 0.5 ms)."""
    write(path, "cgroup.freeze", "1")
    _wait_event(path, "frozen 1")


def thaw(path: str) -> None:
    write(path, "cgroup.freeze", "0")


@contextlib.contextmanager
def frozen(path: str) -> Iterator[None]:
    """Frozen within, and afterwards if it was before."""
    was_frozen = read(path, "cgroup.freeze").strip() == "1"
    freeze(path)
    try:
        yield
    finally:
        if not was_frozen:
            thaw(path)


def kill(path: str) -> None:
    """SIGKILL to every process of the group, frozen ones too. Not an error if the group is gone."""
    try:
        write(path, "cgroup.kill", "1")
    except FileNotFoundError:  # before Linux 5.14
        for pid in members(path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_empty(path: str) -> None:
    """Block until no process is in the group. Raises TimeoutError after EMPTY_POLL_S seconds."""
    with contextlib.suppress(FileNotFoundError):
        _wait_event(path, "populated 0")


def remove(path: str) -> None:
    """Remove an empty group; fine if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


def memory_bytes(path: str) -> int | None:
    """Memory charged to the group by whichever memory controller it is in; None where there is none."""
    for name in ("memory.current", "memory.usage_in_bytes"):
        with contextlib.suppress(FileNotFoundError):
            return int(read(path, name))
    return None


def _wait_event(path: str, wanted: str) -> None:
    """cgroup.events raises POLLPRI whenever one of its values changes."""
    deadline = time.monotonic() + EMPTY_POLL_S
    fd = os.open(f"{path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        while wanted.encode() not in os.pread(fd, 4096, 0):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(errno.ETIMEDOUT, f"waited {EMPTY_POLL_S:.0f} s for {wanted!r}", path)
            if left_s > EMPTY_POLL_S - _HELD_BACK_S:
                time.sleep(_LOOK_S)
            else:
                poll.poll(1000 * left_s)
    finally:
        os.close(fd)


def cpu_usec(path: str) -> int:
    """Processor time that the cgroup2 group has used so far; cpu.stat is there without any controller. 0 if the group
    is gone.
    """
    try:
        for line in read(path, "cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            if name == "usage_usec":
                return int(value)
    except FileNotFoundError:
        return 0
    return 0
