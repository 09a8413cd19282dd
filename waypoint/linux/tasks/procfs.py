"""Facts about one process from /proc (proc(5)).

A function that takes a pid raises ProcessLookupError if the process is gone, unless its docstring says otherwise.
"""

import contextlib
import errno
import functools
import os
import resource
import sys
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.calls import libc
from waypoint.linux.storage import beneath

# Numbers of the system calls in which a waiting shell is blocked (syscalls(2)).
_CALLS: dict[str, dict[int, str]] = {
    "x86_64": {0: "read", 7: "poll", 23: "select", 61: "wait4", 270: "pselect6", 271: "ppoll"},
    "aarch64": {63: "read", 72: "pselect6", 73: "ppoll", 260: "wait4"},
}
_NAMES = _CALLS[os.uname().machine]
_NS_GET_PARENT = 0xB702  # linux/nsfs.h


class Stat(NamedTuple):
    """Some fields of /proc/PID/stat. Ids are those of the reader's pid namespace. `name`: bytes in it that are no text
    are written as `\\xNN`, so that every message and every record can have it.
    """

    name: str
    state: str
    parent: int
    group: int
    session: int
    foreground: int  # foreground process group of the process's terminal; -1 without a terminal
    child_faults: int  # page faults of the children that the process has waited for
    start_ticks: int
    code_start: int
    stack_start: int


class Rights(NamedTuple):
    """What decides what a process may do, to be compared with that of another. `uids`: its user ids. `own`: its ids and
    capabilities, which a program may get by being executed. `walls`: root folder, user and mount namespace, bounding
    set and filters, which no program leaves so.
    """

    uids: frozenset[int]
    own: tuple[bytes, ...]
    walls: tuple[str | bytes, ...]


class BlockingCall(NamedTuple):
    """The system call in which a process is blocked: name ("" if not in this module's table) and first argument."""

    name: str
    first: int


def stat(pid: int) -> Stat:
    """Read /proc/PID/stat."""
    text = _read(pid, "stat")
    name, _, rest = text[text.index(b"(") + 1 :].rpartition(b")")
    fields = rest.split()
    numbers = [int(fields[place]) for place in (1, 2, 3, 5, 8, 19, 23, 25)]
    return Stat(name.decode(errors="backslashreplace"), fields[0].decode("ascii"), *numbers)


def start_ticks(pid: int) -> int:
    """The start time of process `pid`, in clock ticks since boot; 0 if the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        return stat(pid).start_ticks
    return 0


def inner_pid(pid: int) -> int:
    """The id of process `pid` in the innermost of its pid namespaces (NSpid)."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def threads(pid: int) -> list[int]:
    """The ids of the threads of the process. Raises ProcessLookupError if it has ended."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/task") from None


def executable(pid: int) -> str:
    """The path of the program that the process runs, seen from its own root; ends in " (deleted)" if removed."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/exe") from None


def folder(pid: int) -> str:
    """The process's working directory, seen from its own root; "" if that folder was removed."""
    try:
        found = os.readlink(f"/proc/{pid}/cwd")
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/cwd") from None
    return "" if found.endswith(" (deleted)") or not found.startswith("/") else found


def open_files(pid: int) -> dict[int, str]:
    """The open files by descriptor number: a path as seen from the process's root, or "pipe:[...]" and the like."""
    folder = f"/proc/{pid}/fd"
    found = {}
    try:
        entries = os.listdir(folder)
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), folder) from None
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found[int(entry)] = os.readlink(f"{folder}/{entry}")
    return found


def count_open_files(pid: int) -> int:
    """How many open files the process has, 0 if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        folder = f"/proc/{pid}/fd"
        return os.stat(folder).st_size or len(os.listdir(folder))  # before Linux 6.2 the size is 0
    return 0


def fdinfo(pid: int, fd: int, most_bytes: int) -> bytes:
    """What the kernel tells of the process's descriptor `fd` (proc_pid_fdinfo(5)), at most `most_bytes` of it; b"" if
    the descriptor was closed, or the process is gone.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/fdinfo/{fd}", "rb") as file:
        return file.read(most_bytes)
    return b""


def command_line(pid: int) -> list[str]:
    """The arguments of the process, with bytes as in `Stat.name`; empty for a zombie or a kernel thread."""
    return [word.decode(errors="backslashreplace") for word in _read(pid, "cmdline").split(b"\0")[:-1]]


def raw(pid: int, name: str, limit: int) -> bytes:
    """The first `limit` bytes of the file `name` in /proc/PID. Raises PermissionError."""
    return _read(pid, name, limit)


def rights(pid: int) -> Rights:
    """What decides what the process may do. Raises PermissionError."""
    fields = dict(line.split(b":\t", 1) for line in _read(pid, "status").splitlines() if b":\t" in line)
    try:
        walls = [os.readlink(f"/proc/{pid}/{name}") for name in ("root", "ns/user", "ns/mnt")]
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/root") from None
    return Rights(
        frozenset(map(int, fields[b"Uid"].split())),
        tuple(fields[name] for name in (b"Uid", b"Gid", b"Groups", b"CapPrm")),
        (*walls, *(fields.get(name, b"") for name in (b"CapBnd", b"NoNewPrivs", b"Seccomp", b"Seccomp_filters"))),
    )


def position(pid: int, number: int) -> tuple[int, int]:
    """The offset and the flags (open(2)) of an open file (proc_pid_fdinfo(5))."""
    lines = _read(pid, f"fdinfo/{number}").splitlines()
    fields = dict(line.split(b":\t", 1) for line in lines if b":\t" in line)
    return int(fields[b"pos"]), int(fields[b"flags"], 8)


def system_call(pid: int) -> BlockingCall | None:
    """The system call in which the process is blocked; None if the process is running.

    Raises PermissionError if the caller may not trace the process.
    """
    words = _read(pid, "syscall").split()
    if words[0] in (b"running", b"-1"):
        return None
    return BlockingCall(_NAMES.get(int(words[0]), ""), int(words[1], 16))


def processor_ns(pid: int) -> int:
    """Nanoseconds of processor time of the process's main thread (sched-stats.rst, "/proc/<pid>/schedstat")."""
    return int(_read(pid, "schedstat").split()[0])


def children(pid: int) -> list[int]:
    """Pids of the children of the process's main thread, zombies included. A shell has no other threads."""
    return [int(word) for word in _read(pid, f"task/{pid}/children").split()]


def _read(pid: int, name: str, limit: int = sys.maxsize) -> bytes:
    path = f"/proc/{pid}/{name}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), path) from None
    parts = []
    try:
        while limit > 0 and (part := os.read(fd, min(limit, 1 << 16))):
            parts.append(part)
            limit -= len(part)
    finally:
        os.close(fd)
    return b"".join(parts)


@functools.cache
def boot_id() -> str:
    """A random id that the kernel chooses at each boot of the machine (/proc/sys/kernel/random/boot_id)."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def is_same(pid: int, start_ticks: int) -> bool:
    """True if process `pid` started at `start_ticks` and has not ended. False for a zombie."""
    try:
        found = stat(pid)
    except ProcessLookupError:
        return False
    return found.start_ticks == start_ticks and found.state not in "ZX"


def share_bytes(pid: int) -> int:
    """The proportional set size (PSS): a page that n processes share counts 1/n. 0 if the process is gone."""
    try:
        for line in _read(pid, "smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except ProcessLookupError:
        return 0
    return 0


def own_bytes(pid: int) -> int:
    """The memory of the process that is in no file and no shared memory (proc_pid_statm(5)); 0 if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        _size, resident, shared, *_rest = map(int, _read(pid, "statm").split())
        return (resident - shared) * resource.getpagesize()
    return 0


def open_root(pid: int) -> int:
    """An O_PATH descriptor of process `pid`'s root folder, for `beneath.open_beneath`.

    A symbolic link below that folder may lead out of it, so it must not be followed by other calls. Raises OSError
    MISPLACED (beneath.py) if the process is in a user namespace further in than one of the caller's own: there it could
    have mounted anything, and a user namespace is never left for the one around it.
    """
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _is_right_below(pid):
            raise OSError(
                beneath.MISPLACED, "the process has gone into a user namespace of its own", f"/proc/{pid}/root"
            )
    except BaseException:
        os.close(root)
        raise
    return root


def _is_right_below(pid: int) -> bool:
    """Whether process `pid` is in the caller's user namespace, or in one right below it (ioctl_ns(2))."""
    own = os.stat("/proc/self/ns/user")
    fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.path.samestat(os.fstat(fd), own):
            return True
        parent = libc.call("ioctl", fd, _NS_GET_PARENT, 0)
    finally:
        os.close(fd)
    try:
        return os.path.samestat(os.fstat(parent), own)
    finally:
        os.close(parent)


@contextlib.contextmanager
def opened_mount(pid: int, target: str, fstype: str) -> Iterator[int]:
    """An O_PATH descriptor of the root of the mount that process `pid` has at `target`, a folder, for the `with` block.

    Raises OSError MISPLACED (beneath.py) if that is no mount of the kind `fstype`: the process's mount points can be
    renamed by whoever may unshare(2), and something else put in their places.
    """
    from waypoint.linux.storage import descriptors, mounts  # the supervisor, which needs neither, is to stay small

    root = open_root(pid)
    try:
        with beneath.MountPlace(beneath.name_of(root), target).opened_fd() as fd:
            number = descriptors.mount_id(fd)
            table = mounts.read_mounts(pid)
            if not any((one.id, one.mount_point, one.fstype) == (number, target, fstype) for one in table):
                raise OSError(beneath.MISPLACED, f"no {fstype} is mounted there any more", target)
            yield fd
    finally:
        os.close(root)


def set_oom_score(adjustment: int) -> None:
    """Set how likely the kernel kills the calling process when memory runs out: -1000 (never) to 1000.

    Raises PermissionError if `adjustment` is lower than before and the caller has no CAP_SYS_RESOURCE.
    """
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(adjustment))
