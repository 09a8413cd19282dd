"""Facts about one process from /proc (proc(5)).

A function that takes a pid raises ProcessLookupError if the process is gone, unless its docstring says otherwise.
"""

import contextlib
import errno
import os
from typing import NamedTuple

# Numbers of the system calls in which a waiting shell is blocked (syscalls(2)).
_CALLS: dict[str, dict[int, str]] = {
    "x86_64": {0: "read", 7: "poll", 23: "select", 61: "wait4", 270: "pselect6", 271: "ppoll"},
    "aarch64": {63: "read", 72: "pselect6", 73: "ppoll", 260: "wait4"},
}
_NAMES = _CALLS[os.uname().machine]


class Stat(NamedTuple):
    """Some fields of /proc/PID/stat. Ids are those of the reader's pid namespace."""

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
    return Stat(os.fsdecode(name), fields[0].decode("ascii"), *numbers)


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


def executable(pid: int) -> str:
    """The path of the program that the process runs, seen from its own root; ends in " (deleted)" if removed."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/exe") from None


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


def command_line(pid: int) -> list[str]:
    """The arguments of the process; empty for a zombie or a kernel thread."""
    return [os.fsdecode(word) for word in _read(pid, "cmdline").split(b"\0")[:-1]]


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


def has_entry(name: str) -> bool:
    """True if this kernel has the file or folder `/proc/<name>`."""
    return os.path.exists(f"/proc/{name}")


def root_path(pid: int) -> str:
    """The path of process `pid`'s root folder, seen from the caller.

    A symbolic link below that folder leads to the caller's files. So append only paths that nobody who runs in that
    root can change; for others use `open_root`.
    """
    return f"/proc/{pid}/root"


def open_root(pid: int) -> int:
    """An O_PATH descriptor of process `pid`'s root folder, for `files.open_beneath`.

    A symbolic link below that folder may lead out of it, so it must not be followed by other calls.
    """
    return os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def set_oom_score(adjustment: int) -> None:
    """Set how likely the kernel kills the calling process when memory runs out: -1000 (never) to 1000.

    Raises PermissionError if `adjustment` is lower than before and the caller has no CAP_SYS_RESOURCE.
    """
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(adjustment))
