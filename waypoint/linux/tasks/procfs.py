"""Facts about one process from /proc (proc(5)).

A function that takes a pid raises ProcessLookupError if the process does not exist, unless its docstring says
otherwise.
"""

import contextlib
import errno
import functools
import os
import resource
import signal
import sys
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.calls import libc
from waypoint.linux.storage import beneath

# The numbers of the system calls in which a waiting shell blocks (syscalls(2)).
_CALLS: dict[str, dict[int, str]] = {
    "x86_64": {0: "read", 7: "poll", 23: "select", 61: "wait4", 270: "pselect6", 271: "ppoll"},
    "aarch64": {63: "read", 72: "pselect6", 73: "ppoll", 260: "wait4"},
}
_NAMES = _CALLS[os.uname().machine]
_NS_GET_PARENT = 0xB702  # linux/nsfs.h


class Stat(NamedTuple):
    """Some fields of /proc/PID/stat. Ids are those of the reader's pid namespace. `name`: bytes that are not UTF-8 are
    written as `\\xNN`, so that the name can appear in every message and record.
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
    """The facts that decide what a process may do, for a comparison with another process. `uids`: its user ids. `own`:
    ids and capabilities, which a process may gain by executing a program. `walls`: root folder, user and mount
    namespaces, bounding set and filters, from which no executed program can escape.
    """

    uids: frozenset[int]
    own: tuple[bytes, ...]
    walls: tuple[str | bytes, ...]


class BlockingCall(NamedTuple):
    """The system call in which a process blocks: its name ("" if not in this module's table) and its first argument."""

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
    """Return the start time of process `pid` in clock ticks since boot, or 0 if the process does not exist."""
    with contextlib.suppress(ProcessLookupError):
        return stat(pid).start_ticks
    return 0


def inner_pid(pid: int) -> int:
    """Return the id of process `pid` in the innermost of its pid namespaces."""
    return _pids(pid)[-1]


def session_pid(pid: int) -> int:
    """Return the id of process `pid` in the pid namespace below the daemon's: the session's, which the process may have
    left for a namespace of its own.
    """
    return _pids(pid)[:2][-1]


def _pids(pid: int) -> list[int]:
    """The ids of process `pid`, from the daemon's pid namespace (proc_pid_status(5), NSpid) inwards."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return [int(word) for word in line.split()[1:]]
    return [pid]


def threads(pid: int) -> list[int]:
    """Return the ids of the threads of the process."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/task") from None


def executable_link(pid: int) -> str:
    """The path of the link to the process's program. Opening it needs no path in the process's mounts."""
    return f"/proc/{pid}/exe"


def executable(pid: int) -> str:
    """Return the path of the program that the process runs, as seen from the process's root. It ends in " (deleted)" if
    the program's file was removed.
    """
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/exe") from None


def folder(pid: int) -> str:
    """Return the process's working directory as seen from its root, or "" if that folder was removed or its path is too
    long.
    """
    found = folder_link(pid)
    return "" if found.endswith(" (deleted)") or not found.startswith("/") else found


def folder_link(pid: int) -> str:
    """Return the kernel's text about the process's working directory: its path, which ends in " (deleted)" if it was
    removed; "" if the path is too long.
    """
    try:
        return read_link(f"/proc/{pid}/cwd")
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/cwd") from None


def open_files(pid: int) -> dict[int, str]:
    """Return the open files by descriptor number: paths as seen from the process's root, or texts like "pipe:[...]", or
    "" if the path is too long.
    """
    folder = f"/proc/{pid}/fd"
    found = {}
    try:
        entries = os.listdir(folder)
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), folder) from None
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):  # the process has closed the descriptor
            found[int(entry)] = read_link(f"{folder}/{entry}")
    return found


def open_path(pid: int, number: int) -> str:
    """Return the path of the process's open file `number`; "" if it is closed or may not be read."""
    with contextlib.suppress(OSError):
        return read_link(f"/proc/{pid}/fd/{number}")
    return ""


def read_link(link: str) -> str:
    """Return the path that a link in /proc contains; "" if it is longer than 4,095 bytes, which the kernel refuses."""
    try:
        return os.readlink(link)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return ""
        raise


def socket_protocol(pid: int, fd: int) -> str:
    """Return the kernel's name for the protocol of a socket that the process has open, such as "TCPv6" or "MPTCP"; ""
    if it was closed or is not a socket.
    """
    with contextlib.suppress(OSError):
        return os.getxattr(f"/proc/{pid}/fd/{fd}", "system.sockprotoname").rstrip(b"\0").decode(errors="replace")
    return ""


def count_open_files(pid: int) -> int:
    """Return how many open files the process has, or 0 if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        folder = f"/proc/{pid}/fd"
        return os.stat(folder).st_size or len(os.listdir(folder))  # before Linux 6.2, st_size is 0
    return 0


def fdinfo(pid: int, fd: int, most_bytes: int) -> bytes:
    """Return at most `most_bytes` of the kernel's text about the process's descriptor `fd` (proc_pid_fdinfo(5)). b"" if
    the descriptor was closed or the process does not exist.
    """
    try:
        return _read(pid, f"fdinfo/{fd}", most_bytes)
    except ProcessLookupError:
        return b""


def command_line(pid: int) -> list[str]:
    """Return the arguments of the process, with bytes that are not UTF-8 as `\\xNN`. Empty for a zombie or a kernel
    thread.
    """
    return [word.decode(errors="backslashreplace") for word in _read(pid, "cmdline").split(b"\0")[:-1]]


def raw(pid: int, name: str, limit: int) -> bytes:
    """Return the first `limit` bytes of the file `name` in /proc/PID. May raise PermissionError."""
    return _read(pid, name, limit)


def rights(pid: int) -> Rights:
    """Read the facts that decide what the process may do. May raise PermissionError."""
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
    """Return the offset and the flags (open(2)) of the process's open file `number` (proc_pid_fdinfo(5))."""
    lines = _read(pid, f"fdinfo/{number}").splitlines()
    fields = dict(line.split(b":\t", 1) for line in lines if b":\t" in line)
    return int(fields[b"pos"]), int(fields[b"flags"], 8)


def system_call(pid: int) -> BlockingCall | None:
    """Return the system call in which the process blocks, or None if the process is running.

    Raises PermissionError if the caller may not trace the process.
    """
    words = _read(pid, "syscall").split()
    if words[0] in (b"running", b"-1"):
        return None
    return BlockingCall(_NAMES.get(int(words[0]), ""), int(words[1], 16))


def has_waiting_timer(pid: int) -> bool:
    """Return True if the signal of a timer (timer_create(2)) waits for the process or a thread of it
    (proc_pid_timers(5)).
    """
    wanted = 0
    for line in _read(pid, "timers").splitlines():
        if line.startswith(b"signal:"):
            wanted |= 1 << (int(line.split()[1].partition(b"/")[0]) - 1)
    if not wanted:
        return False
    fields = (line.split() for tid in threads(pid) for line in _read(tid, "status").splitlines())
    return any(words[0] in (b"SigPnd:", b"ShdPnd:") and int(words[1], 16) & wanted for words in fields if words)


def has_timer_of_day(pid: int) -> bool:
    """Return True if the process has a timer (timer_create(2)) on CLOCK_REALTIME."""
    return b"ClockID: 0\n" in _read(pid, "timers")


def is_killed(pid: int) -> bool:
    """Return True if the process has got SIGKILL and has not acted on it yet."""
    lines = (line.split() for line in _read(pid, "status").splitlines() if line.startswith((b"SigPnd:", b"ShdPnd:")))
    return any(int(mask, 16) & 1 << (signal.SIGKILL - 1) for _name, mask in lines)


def processor_ns(pid: int) -> int:
    """Return the processor time of the process's main thread in nanoseconds (/proc/PID/schedstat, sched-stats.rst)."""
    return int(_read(pid, "schedstat").split()[0])


def children(pid: int, thread: int = 0) -> list[int]:
    """Return the pids of the children of a thread of the process, including zombies. `thread` 0: the main thread. A
    shell has no other threads.
    """
    return [int(word) for word in _read(pid, f"task/{thread or pid}/children").split()]


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
    """Return the random id that the kernel chooses at each boot of the machine (/proc/sys/kernel/random/boot_id)."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def is_same(pid: int, start_ticks: int) -> bool:
    """Return True if process `pid` started at `start_ticks` and has not ended, False also for a zombie."""
    try:
        found = stat(pid)
    except ProcessLookupError:
        return False
    return found.start_ticks == start_ticks and found.state not in "ZX"


class Resident(NamedTuple):
    """Resident memory in bytes. `share`: of a page that n processes map, 1/n is counted (PSS). `own`: pages that no
    other process maps. `all` - `own` are pages that others map, too: libraries, and memory that forks share.
    """

    all: int
    share: int
    own: int


def resident(pid: int) -> Resident:
    """Return the resident memory of a process; zeros if the process does not exist. Takes some milliseconds per GiB."""
    kib = dict.fromkeys((b"Rss", b"Pss", b"Private_Clean", b"Private_Dirty"), 0)
    with contextlib.suppress(ProcessLookupError):
        for line in _read(pid, "smaps_rollup").splitlines():
            name, _, value = line.partition(b":")
            if name in kib:
                kib[name] = int(value.split()[0])
    return Resident(1024 * kib[b"Rss"], 1024 * kib[b"Pss"], 1024 * (kib[b"Private_Clean"] + kib[b"Private_Dirty"]))


class Pages(NamedTuple):
    """Pages of a process: all that it has mapped, and those of data and stack."""

    mapped: int
    data: int


def memory_pages(pid: int) -> Pages:
    """Return how many pages the process has mapped (proc_pid_statm(5))."""
    numbers = _read(pid, "statm").split()
    return Pages(int(numbers[0]), int(numbers[5]))


def own_bytes(pid: int) -> int:
    """Return the process's resident memory in bytes, without files and shared memory (proc_pid_statm(5)). 0 if the
    process does not exist.
    """
    with contextlib.suppress(ProcessLookupError):
        _size, resident, shared, *_rest = map(int, _read(pid, "statm").split())
        return (resident - shared) * resource.getpagesize()
    return 0


def most_image_bytes(pid: int) -> int:
    """Return the most that the process's memory can take in an image, in bytes: all that is not in files, also if it is
    shared or swapped out. 0 if the process does not exist.
    """
    total = 0
    with contextlib.suppress(ProcessLookupError):
        for line in _read(pid, "status").splitlines():
            name, _, value = line.partition(b":")
            if name in (b"RssAnon", b"RssShmem", b"VmSwap"):
                total += int(value.split()[0]) << 10
    return total


def open_root(pid: int) -> int:
    """Return an O_PATH descriptor of process `pid`'s root folder, for `beneath.open_beneath`.

    Other calls must not be used below this folder, since a symbolic link there may lead out of it. Raises OSError
    MISPLACED (beneath.py) if the process is in a user namespace that is neither the caller's nor a direct child of the
    caller's: there the process could have mounted anything.
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
    """Return True if process `pid` is in the caller's user namespace or in a direct child of it (ioctl_ns(2))."""
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
    """Open an O_PATH descriptor of the root of the mount that process `pid` has at the folder `target`, for the `with`
    block.

    Raises OSError MISPLACED (beneath.py) if no mount of the type `fstype` is there: a process of the session that may
    unshare(2) can rename mount points and replace them.
    """
    from waypoint.linux.storage import descriptors, mounts  # not at the top: the supervisor does not need these

    root = open_root(pid)
    try:
        with beneath.MountPlace(beneath.name_of(root), target).opened_fd() as fd:
            number = descriptors.mount_id(fd)
            table = mounts.read_mounts(pid)
            if not any((one.id, one.mount_point, one.fstype) == (number, target, fstype) for one in table):
                raise OSError(beneath.MISPLACED, f"no {fstype} is mounted here any more", target)
            yield fd
    finally:
        os.close(root)


def oom_score() -> int:
    """How likely the kernel kills the calling process when memory runs out, from -1000 (never) to 1000."""
    with open("/proc/self/oom_score_adj") as file:
        return int(file.read())


def set_oom_score(adjustment: int, pid: int | None = None) -> None:
    """Set `oom_score` of the process `pid`; None: of the calling process.

    Raises PermissionError if `adjustment` is lower than before and the caller has no CAP_SYS_RESOURCE.
    """
    with open(f"/proc/{pid or 'self'}/oom_score_adj", "w") as file:
        file.write(str(adjustment))


def set_session_nice(nice: int) -> None:
    """Set the niceness of the calling process's session among all sessions. Raises FileNotFoundError if the kernel has
    no such value (CONFIG_SCHED_AUTOGROUP), PermissionError if `nice` is negative and the caller has no CAP_SYS_NICE.
    """
    with open("/proc/self/autogroup", "w") as file:
        file.write(str(nice))
