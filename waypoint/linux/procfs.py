"""What /proc says about one process (proc(5)). Every function raises ProcessLookupError when the process is gone."""

import contextlib
import errno
import os
from typing import NamedTuple

# Numbers of the calls that a waiting shell sits in (syscalls(2)).
_CALLS: dict[str, dict[int, str]] = {
    "x86_64": {0: "read", 7: "poll", 23: "select", 61: "wait4", 270: "pselect6", 271: "ppoll"},
    "aarch64": {63: "read", 72: "pselect6", 73: "ppoll", 260: "wait4"},
}
_NAMES = _CALLS[os.uname().machine]


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are used; ids are in the reader's pid namespace."""

    name: str
    state: str
    parent: int
    group: int
    session: int
    foreground: int  # the process group that its terminal has in the foreground; -1 without a terminal
    child_faults: int  # page faults of its children that it has waited for
    start_ticks: int
    code_start: int
    stack_start: int


class Call(NamedTuple):
    """The system call a process is in: its name ("" if not one of those known here) and its first argument."""

    name: str
    first: int


def stat(pid: int) -> Stat:
    text = _read(pid, "stat")
    name, _, rest = text[text.index(b"(") + 1 :].rpartition(b")")
    fields = rest.split()
    numbers = [int(fields[place]) for place in (1, 2, 3, 5, 8, 19, 23, 25)]
    return Stat(os.fsdecode(name), fields[0].decode("ascii"), *numbers)


def start_ticks(pid: int) -> int:
    """When it started, in clock ticks since boot; 0 if it has ended by now."""
    with contextlib.suppress(ProcessLookupError):
        return stat(pid).start_ticks
    return 0


def inner_pid(pid: int) -> int:
    """The process's id in the innermost pid namespace it is in (NSpid)."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def executable(pid: int) -> str:
    """The path of the program it runs, as its own root sees it; " (deleted)" is appended by the kernel if so."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/exe") from None


def open_files(pid: int) -> dict[int, str]:
    """What its descriptors stand for, as its own root sees that: a path, or "pipe:[...]" and the like."""
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


def command_line(pid: int) -> list[str]:
    """Its arguments; none for a zombie or a kernel thread."""
    return [os.fsdecode(word) for word in _read(pid, "cmdline").split(b"\0")[:-1]]


def system_call(pid: int) -> Call | None:
    """The call it is blocked in; None if it runs on a processor. Raises PermissionError if we may not trace it."""
    words = _read(pid, "syscall").split()
    if words[0] in (b"running", b"-1"):
        return None
    return Call(_NAMES.get(int(words[0]), ""), int(words[1], 16))


def processor_ns(pid: int) -> int:
    """How long it has run on processors (of its main thread: sched-stats, "/proc/<pid>/schedstat")."""
    return int(_read(pid, "schedstat").split()[0])


def children(pid: int) -> list[int]:
    """Its children that are alive or not yet waited for (of its main thread: shells have no other)."""
    return [int(word) for word in _read(pid, f"task/{pid}/children").split()]


def _read(pid: int, name: str) -> bytes:
    path = f"/proc/{pid}/{name}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), path) from None
    parts = []
    try:
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts)


def boot_id() -> str:
    """Random, fixed from one boot of the machine to the next (/proc/sys/kernel/random/boot_id)."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def is_same(pid: int, start_ticks: int) -> bool:
    """True if `pid` is the process that started at `start_ticks`, and still runs (not as a zombie)."""
    try:
        found = stat(pid)
    except ProcessLookupError:
        return False
    return found.start_ticks == start_ticks and found.state not in "ZX"


def share_bytes(pid: int) -> int:
    """Its proportional share of memory (PSS): pages shared by n processes count 1/n. 0 if it is gone."""
    try:
        for line in _read(pid, "smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except ProcessLookupError:
        return 0
    return 0


def has_entry(name: str) -> bool:
    """True if this kernel has /proc/`name`."""
    return os.path.exists(f"/proc/{name}")


def root_path(pid: int) -> str:
    """The root folder of `pid`. Paths below it may lead out: only for places that nobody inside can change."""
    return f"/proc/{pid}/root"


def open_root(pid: int) -> int:
    """The root folder of `pid`, for `openat2` (O_PATH). Paths below it may lead out: never follow links there."""
    return os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def set_oom_score(adjustment: int) -> None:
    """How readily the kernel is to kill the calling process when memory runs out: -1000 (never) to 1000.

    Raises PermissionError: less than before takes CAP_SYS_RESOURCE.
    """
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(adjustment))
