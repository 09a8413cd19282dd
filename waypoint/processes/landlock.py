"""Finding the tasks that have restricted themselves by Landlock (landlock(7)).

A Landlock domain belongs to a task, and its children inherit it. The kernel shows it nowhere and cannot read it back,
so CRIU restores the task without it. Such a session must not be captured with its processes.

Only a task with `no_new_privs` can have a domain: else landlock_restrict_self(2) needs CAP_SYS_ADMIN, which no process
of a session has. The proof for such a task: a domain has at most LAYERS layers. The task is made to start a thread,
which inherits the domain and adds layers to its own copy until the kernel refuses. If LAYERS could be added, there was
none. The thread then ends. All tasks of the frozen session are stopped by ptrace meanwhile, since a frozen task cannot
run a system call. x86-64 only.
"""

import errno
import logging
import os
from collections.abc import Mapping

from waypoint.linux.calls import libc, machine
from waypoint.linux.tasks import procfs, ptrace
from waypoint.linux.tasks.ptrace_stop import NotTraceable, stopped
from waypoint.linux.tasks.states import TaskState
from waypoint.model.errors import CannotCapture
from waypoint.processes.criu.causes import name_of

log = logging.getLogger(__name__)

LAYERS = 16  # LANDLOCK_MAX_NUM_LAYERS in security/landlock/limits.h
_MOST = 200  # tasks; each takes 2 to 5 ms of the pause
_CLONE, _CREATE_RULESET, _RESTRICT_SELF = 56, 444, 446
_THREAD = 0x100 | 0x800 | 0x10000 | 0x40000  # CLONE_VM, CLONE_SIGHAND, CLONE_THREAD, CLONE_SYSVSEM; own descriptors
_RULES = (1).to_bytes(8, "little")  # struct landlock_ruleset_attr: handles LANDLOCK_ACCESS_FS_EXECUTE
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION


def check(cgroup: str, states: Mapping[int, TaskState]) -> bool:
    """Raise CannotCapture if a task has a domain, or it cannot be found out whether it has one. Return True if tasks
    were stopped for that.

    `states`: all tasks of `cgroup`, which must be frozen, and is frozen on return. Costs nothing without a task with
    `no_new_privs`. Raises OSError.
    """
    asked = [tid for tid, task in states.items() if task.no_new_privs and task.state not in "ZX"]
    if not asked or not _is_supported():
        return False
    if machine.architecture() != "x86_64" or len(asked) > _MOST:
        raise _refusal(asked[0], "may have")
    try:
        with stopped(cgroup, [tid for tid, task in states.items() if task.state not in "ZX"]):
            for tid in asked:
                try:
                    has_domain = _has_domain(tid, states[tid].process)
                except OSError as error:
                    log.warning("whether %s has a Landlock domain: %s", tid, error)
                    raise _refusal(tid, "may have") from error
                if has_domain:
                    raise _refusal(tid, "has")
    except NotTraceable as error:
        raise _refusal(error.tid, "may have") from error
    return True


def _refusal(tid: int, verb: str) -> CannotCapture:
    said = f"{name_of(tid) or tid} {verb} restricted itself by Landlock, and a copy would not be restricted"
    next_step = "end the process, or capture without memory: --tier respawn"
    return CannotCapture("capture", "the session's processes", said, next_step, code="landlock")


def _is_supported() -> bool:
    try:
        libc.syscall("landlock_create_ruleset", None, 0, _VERSION)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            return False
    return True


def _has_domain(tid: int, process: int) -> bool:
    """Whether the stopped task has a domain. Raises OSError if that cannot be found out."""
    code = ptrace.code_place(tid)
    before = {*procfs.threads(process)}
    _checked(ptrace.system_call(tid, code, _CLONE, _THREAD, 0))
    (thread,) = {*procfs.threads(process)} - before
    ptrace.wait(thread)
    try:
        rules = _checked(ptrace.system_call(thread, code, _CREATE_RULESET, None, len(_RULES), 0, data=_RULES))
        added = 0
        while added < LAYERS:
            result = ptrace.system_call(thread, code, _RESTRICT_SELF, rules, 0)
            if result == -errno.E2BIG:
                return True
            _checked(result)
            added += 1
        return False
    finally:
        ptrace.end_thread(thread, code)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
