"""Predicting which processes of a running session CRIU would refuse to dump, or could not restore.

Checks only what is cheap to read for hundreds of processes (proc(5)): tracers, namespaces and open files. A capture may
find more reasons.
"""

import contextlib
import os
import re
from collections.abc import Collection

import msgspec

from waypoint.linux.tasks import namespaces, procfs
from waypoint.linux.tasks.states import task_state
from waypoint.model.errors import CannotCapture
from waypoint.model.records import Tier
from waypoint.processes.criu.cause_table import CAUSES
from waypoint.processes.respawn.redact import command_line

_NOT_DUMPED = ("pid", "user")  # namespaces of which CRIU dumps none but the session's
_KIND = re.compile(r"^anon_inode:\[(?:fanotify|perf_event|userfaultfd|landlock-ruleset)\]$|^/dev/(?:fuse|kvm)$")
_THREAD_FILE = re.compile(r"^/proc/(\d+)/task/(?!\1\b)\d+\b")  # CRIU opens files before it makes threads
_IN_MEMORY = "/memfd:"
_NEXT_STEPS = {cause.name: cause.next_step for cause in CAUSES}


class Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """A process, and the tier that a capture of this process alone would reach. `pid`: as the session sees it.
    `command`: without secrets. `why`: the reason why the tier is not `live`, and `remedy` the next step; else "".
    """

    pid: int
    command: str
    tier: Tier
    why: str
    remedy: str


def survey(init: int, pids: Collection[int]) -> list[Surveyed]:
    """Survey the processes `pids` of the session whose pid 1 is `init`. Skips processes that have ended. Takes about
    0.1 ms per process, more for one with many open files.
    """
    own = {kind: _namespace(init, kind) for kind in _NOT_DUMPED}
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            why, cause = _why_not(pid, own)
            command = command_line(procfs.command_line(pid)) or procfs.stat(pid).name
            tier: Tier = "respawn" if why else "live"
            inside, remedy = procfs.session_pid(pid), _NEXT_STEPS.get(cause, "")
            found.append(Surveyed(pid=inside, command=command, tier=tier, why=why, remedy=remedy))
    return sorted(found, key=lambda one: one.pid)


def check_restorable(pids: Collection[int]) -> None:
    """Raise CannotCapture if CRIU would dump a process of `pids`, but could not restore it."""
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended
            why, cause = _why_not_restored(pid, procfs.open_files(pid))
            if why:
                said = f"{procfs.stat(pid).name} (pid {procfs.session_pid(pid)}) {why.removeprefix('it ')}"
                code = f"criu-{cause}"
                raise CannotCapture("capture", "the session's processes", said, _NEXT_STEPS[cause], code=code)


def _why_not(pid: int, own: dict[str, int]) -> tuple[str, str]:
    """Why CRIU would refuse the process, and the name of the cause; "" twice if no reason was found."""
    tracer = task_state(pid).tracer
    if tracer:
        return f"it is traced by {procfs.stat(tracer).name}", "traced"
    for kind, number in own.items():
        if _namespace(pid, kind) != number:
            return f"it is in a {kind} namespace of its own", "nested-namespace"
    files = procfs.open_files(pid)
    for fd, path in files.items():
        if path == "anon_inode:[io_uring]":
            return f"it has an io_uring open (fd {fd})", "io-uring"
        if path == "/dev/tty":
            return f"it keeps /dev/tty open (fd {fd})", "dev-tty"
        if _KIND.search(path):
            return f"it has a file open (fd {fd}) of a kind that CRIU cannot dump: {path}", "kind-of-file"
    return _why_not_restored(pid, files)


def _why_not_restored(pid: int, files: dict[int, str]) -> tuple[str, str]:
    """Like `_why_not`, for a process that CRIU would dump. `files`: its open files."""
    if procfs.executable(pid).startswith(_IN_MEMORY):
        return "it runs a program from memory (memfd_create), which CRIU cannot restore", "program-in-memory"
    for fd, path in files.items():
        if _THREAD_FILE.search(path):
            return f"it has a file of a thread open (fd {fd}), which CRIU cannot restore: {path}", "thread-file"
    return "", ""


def _namespace(pid: int, kind: str) -> int:
    return os.stat(namespaces.path(pid, kind)).st_ino
