"""Why CRIU would refuse to dump the processes of a session, or could not restore them, as far as /proc shows it.

A capture makes these checks before it freezes the session, and `waypoint doctor BRANCH` prints their results. CRIU can
find more reasons, which only the memory and the sockets of a stopped process show.
"""

import contextlib
import itertools
import os
import re
import resource
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from waypoint.linux.net import sockets
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import kcmp, mappings, namespaces, procfs, shared_memory
from waypoint.linux.tasks.states import TaskState, task_state
from waypoint.model.errors import CannotCapture, Failed
from waypoint.processes import narrow_limits
from waypoint.processes.criu.causes import known, name_of

_AGAIN_S = 0.005  # after this time a reason is looked for again
_NAMESPACES = ("pid", "user", "ipc", "uts", "time_for_children")  # of which CRIU dumps none but the session's
# By the path of an open file: the cause, and as groups the words of its sentence.
_FILES = {
    "io-uring": re.compile(r"^anon_inode:\[io_uring\]$"),
    "kind-of-file": re.compile(
        r"^(?P<kind>anon_inode:(?:\[(?:fanotify|perf_event|userfaultfd|landlock-ruleset)\]|seccomp notify)"
        r"|/dev/(?:fuse|kvm))$"
    ),
    "thread-file": re.compile(r"^/proc/(?P<owner>\d+)/task/(?!(?P=owner)\b)(?P<thread>\d+)\b"),
    "secret-memory": re.compile(r"^/secretmem\b"),
    "long-path": re.compile(r"^$"),
}
_OF_THREADS: dict[kcmp.Part, str] = {"FS": "working directory", "FILES": "table of open files"}
_UNUSUAL = ("anon_inode:", "/dev/", "/proc", "/secretmem")
_IN_MEMORY = "/memfd:"
_SEGMENT = "/SYSV"
_INFO_BYTES = 200  # as much of fdinfo as is needed here; the rest may be long
# By the name of a socket's protocol in the kernel (struct proto): the cause and the words of its sentence.
_SOCKETS = {
    "MPTCP": ("mptcp", {}),
    "MPTCPv6": ("mptcp", {}),
    "SCTP": ("socket-protocol", {"protocol": "SCTP"}),
    "SCTPv6": ("socket-protocol", {"protocol": "SCTP"}),
    "AF_VSOCK": ("socket-family", {"family": "40"}),
    "XDP": ("socket-family", {"family": "44"}),
    "ALG": ("socket-family", {"family": "38"}),
}


class Refusal(NamedTuple):
    """Why process `pid` (the host's pid) cannot be captured. `code`, `said`, `next_step`: of the error. `is_brief`: the
    state may end in a moment; if it does not, the capture fails with an error of class `kind`.
    """

    pid: int
    code: str
    said: str
    next_step: str
    is_brief: bool = False
    kind: type[CannotCapture | Failed] = CannotCapture

    def error(self) -> CannotCapture | Failed:
        return self.kind("capture", "the session's processes", self.said, self.next_step, code=self.code)


def find(init: int, pids: Sequence[int], *, brief_s: float = 0.0) -> list[Refusal]:
    """The reasons that last for some milliseconds, at most one for each process of `pids`. Skips processes that have
    ended. `init`: the session's pid 1. `brief_s`: how long a brief state must last; with 0.0 they are left out.

    Takes about 0.3 ms for each process, and 0.01 ms for each open file.
    """
    found = _look(init, pids)
    deadline = time.monotonic() + brief_s
    while found and brief_s and any(one.is_brief for one in found.values()) and time.monotonic() < deadline:
        time.sleep(_AGAIN_S)
        found = _look(init, pids)
    if found:
        time.sleep(_AGAIN_S)
        again = _look(init, pids)
        found = {pid: one for pid, one in again.items() if pid in found and found[pid].code == one.code}
    return [one for one in found.values() if brief_s or not one.is_brief]


def of_tasks(states: Mapping[int, TaskState]) -> Iterator[Refusal]:
    """The reasons why CRIU cannot stop or restore the tasks of a session. `states`: all of them, by id."""
    for tid, task in states.items():
        if task.tracer:
            said = f"{name_of(tid) or task.name} is traced by {_tracer(task.tracer)}, so CRIU cannot trace it"
            yield Refusal(task.process, "criu-traced", said, "end the tracer (strace, gdb) and try again")
        elif task.state == "D":  # uninterruptible sleep: in a frozen group, only a parent in vfork
            said = f"{name_of(tid) or task.name} waits for a child that has not executed its program yet (vfork)"
            next_step = "try again later, end that process, or capture without memory: --tier respawn"
            yield Refusal(task.process, "criu-vfork", said, next_step, is_brief=True, kind=Failed)
        elif task.has_trap:
            yield _known("pending-trap", task.process)
        elif task.is_leader_outside:
            yield _known("session-leader", task.process)
    groups = {task.group for task in states.values()}
    for tid, task in states.items():
        if task.session == tid and _foreground_of(tid) not in groups:
            said = f"the foreground process group of the terminal of {name_of(tid) or task.name} has no process"
            next_step = "press Enter in that terminal, or close it, and try again"
            yield Refusal(task.process, "no-foreground", said, next_step, is_brief=True)


class _Session(NamedTuple):
    """What the session's pid 1 has. `spaces`: the inodes of its namespaces. `segments`: the sizes of the segments of
    System V shared memory, by id.
    """

    spaces: dict[str, int]
    mount_space: int
    mounts: frozenset[int]
    segments: dict[int, int]


def _look(init: int, pids: Collection[int]) -> dict[int, Refusal]:
    states: dict[int, TaskState] = {}
    found: dict[int, Refusal] = {}
    try:
        own = _Session(
            {kind: _namespace(init, kind) for kind in _NAMESPACES},
            _namespace(init, "mnt"),
            frozenset(one.id for one in mounts.read_mounts(init)),
            shared_memory.segments(init),
        )
    except OSError:  # the session has ended
        return {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            for tid in procfs.threads(pid):
                states[tid] = task_state(tid)
    for refusal in of_tasks(states):
        found.setdefault(refusal.pid, refusal)
    if all(task.state != "D" for task in states.values()):  # a child in vfork shares its parent's memory
        with contextlib.suppress(OSError):
            for refusal in _sharing(pid for pid in pids if pid in states and states[pid].state not in "ZX"):
                found.setdefault(refusal.pid, refusal)
    for pid in pids:
        if pid not in found and pid in states:
            with contextlib.suppress(OSError):
                for refusal in _of_process(pid, own, states):
                    found[pid] = refusal
                    break
    return found


def _of_process(pid: int, own: _Session, states: Mapping[int, TaskState]) -> Iterator[Refusal]:
    if states[pid].state == "Z":
        if any(task.process == pid and tid != pid and task.state not in "ZX" for tid, task in states.items()):
            yield _known("first-thread", pid)
        return
    for kind, number in own.spaces.items():
        if _namespace(pid, kind) != number:
            yield _known("nested-namespace", pid, kind=kind)
    if procfs.executable(pid).startswith(_IN_MEMORY):
        yield _known("program-in-memory", pid)
    if not procfs.folder_link(pid):
        yield _known("long-path", pid)
    yield from _of_limits(pid)
    yield from _of_threads(pid, states)
    is_mounted = _namespace(pid, "mnt") == own.mount_space
    for fd, path in procfs.open_files(pid).items():
        yield from _of_file(pid, fd, path, own.mounts if is_mounted else ())
    if own.segments and not _are_whole(_attached(pid), own.segments):
        yield _known("shared-memory", pid)


def _of_limits(pid: int) -> Iterator[Refusal]:
    for narrow in narrow_limits.of_process(pid):
        if narrow.is_hard:
            what = "open files (ulimit -n)" if narrow.kind == resource.RLIMIT_NOFILE else "memory (ulimit -v, -d)"
            said = f"{name_of(pid)} has reached its own limit of {what}, so CRIU has no room for its code in it"
            yield Refusal(pid, "narrow-limit", said, "raise the limit before the program starts, or end it")


def _of_threads(pid: int, states: Mapping[int, TaskState]) -> Iterator[Refusal]:
    """CRIU restores all threads with the folder and the open files of the first one."""
    for tid in [tid for tid, task in states.items() if task.process == pid and tid != pid and task.state not in "ZX"]:
        for part, what in _OF_THREADS.items():
            if kcmp.has_own(pid, tid, part):
                said = f"a thread of {name_of(pid)} has a {what} of its own (unshare), which CRIU does not keep"
                yield Refusal(pid, "thread-parts", said, "end the process, or capture without memory: --tier respawn")


def _of_file(pid: int, fd: int, path: str, mounted: Collection[int]) -> Iterator[Refusal]:
    """`mounted`: the ids of the session's mounts; empty if unknown."""
    if not path or path.startswith(_UNUSUAL):
        for cause, pattern in _FILES.items():
            if match := pattern.search(path):
                yield _known(cause, pid, fd, **match.groupdict())
    if path == "/dev/tty" and not _restores_dev_tty(pid):
        yield _known("dev-tty", pid, fd)
    elif path.startswith("socket:["):
        yield from _of_socket(pid, fd)
    elif path.startswith("pipe:[") and _info(pid, fd, "flags", 8) & os.O_DIRECT:
        yield _known("packet-pipe", pid, fd)
    elif path.startswith("/") and not path.startswith(_IN_MEMORY) and mounted:
        number = _info(pid, fd, "mnt_id")
        if number and number not in mounted:
            yield _known("file-from-outside", pid, fd, path=path)


def _of_socket(pid: int, fd: int) -> Iterator[Refusal]:
    protocol = procfs.socket_protocol(pid, fd)
    if protocol in _SOCKETS:
        cause, words = _SOCKETS[protocol]
        yield _known(cause, pid, fd, **words)
    elif protocol in ("UDP", "UDPv6") and sockets.is_corked(pid, fd):
        yield _known("corked-socket", pid, fd)
    elif protocol == "NETLINK" and sockets.has_unread(pid, fd):
        yield _known("unread-netlink", pid, fd)


def _sharing(pids: Iterable[int]) -> Iterator[Refusal]:
    """The processes that share parts with another one. Only forks are compared, whose stacks begin at one address."""
    forks: dict[tuple[int, int], list[int]] = {}
    for pid in pids:
        stat = procfs.stat(pid)
        forks.setdefault((stat.code_start, stat.stack_start), []).append(pid)
    for same in forks.values():
        for part in kcmp.PARTS:
            for pid in kcmp.sharing(same, part):
                yield _known("shared-parts", pid, part=part)


def _restores_dev_tty(pid: int) -> bool:
    """Whether CRIU may restore /dev/tty in this process (tty_verify_ctty in CRIU's tty.c): only in the leader of a
    terminal that is itself in the foreground.
    """
    stat = procfs.stat(pid)
    return stat.session == pid and stat.foreground == pid


def _info(pid: int, fd: int, name: str, base: int = 10) -> int:
    """A number in /proc/PID/fdinfo/FD; 0 if it is missing."""
    for line in procfs.fdinfo(pid, fd, _INFO_BYTES).splitlines():
        word, _, number = line.partition(b":\t")
        if word == name.encode():
            return int(number, base)
    return 0


def _attached(pid: int) -> list[mappings.Mapping]:
    return [one for one in mappings.read_mappings(pid) if one.path.startswith(_SEGMENT)]


def _are_whole(attached: Sequence[mappings.Mapping], sizes: Mapping[int, int]) -> bool:
    """Whether CRIU can attach the segments again: it attaches whole segments, from one address without a gap (see
    open_shmem_sysv in CRIU's shmem.c).
    """
    begin, former = 0, None
    for one, following in itertools.zip_longest(attached, attached[1:]):
        if one.offset == 0:
            begin = one.start
        elif former is None or (former.inode, former.end) != (one.inode, one.start) or one.start - begin != one.offset:
            return False
        is_last = following is None or following.inode != one.inode or following.offset == 0
        if is_last and one.end - begin != -(-sizes.get(one.inode, 0) // mappings.PAGE) * mappings.PAGE:
            return False
        former = one
    return True


def _known(cause: str, pid: int, fd: int = -1, **words: str) -> Refusal:
    """A refusal with code, sentence and next step as if CRIU had found the cause."""
    found = known(cause, name_of(pid, fd), words | {"fd": str(fd)})
    return Refusal(pid, f"criu-{cause}", found.said, found.next_step)


def _namespace(pid: int, kind: str) -> int:
    return os.stat(namespaces.path(pid, kind)).st_ino


def _foreground_of(leader: int) -> int:
    """The foreground group of the terminal of session leader `leader`; without a terminal, the leader's own group."""
    try:
        stat = procfs.stat(leader)
    except ProcessLookupError:  # killed meanwhile
        return leader
    return stat.foreground if stat.foreground > 0 else stat.group


def _tracer(pid: int) -> str:
    return name_of(pid) or f"pid {pid}"
