"""Freezing a session in a state in which CRIU can dump it.

CRIU stops tasks by tracing them (ptrace). If a task cannot be stopped, CRIU waits ten seconds while the session is
frozen. So the states that CRIU cannot handle are detected first:

* A task that another program traces (strace, gdb): the capture fails. CRIU would report the task as a zombie.
* A task in vfork(2), as used by posix_spawn, Python's subprocess and dash. The task sleeps uninterruptibly until its
  child has executed a program, and the cgroup freezer counts it as frozen. This lasts a fraction of a millisecond, so
  the group is thawed and frozen again.
* A terminal whose foreground process group has ended, before the shell has noticed that. This happens between any two
  commands of a loop. CRIU can dump this state, but not restore it (`tty: Failed to set group`). The group is thawed and
  frozen again.
* A TCP connection that no program has accepted yet: CRIU leaves it out. The group is thawed and frozen again for up to
  ACCEPT_S, so that the server can accept the connection. Afterwards it is dumped without the connection.
"""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.net import sockets
from waypoint.linux.tasks import cgroups, procfs
from waypoint.linux.tasks.states import TaskState, task_state
from waypoint.model.errors import CannotCapture, Failed
from waypoint.processes import calls

WAIT_S = 1.0
PAUSE_S = 0.001  # how long the group runs between two attempts
SETTLE_S = 0.0001
ACCEPT_S = 0.1


def freeze_for_dump(cgroup: str) -> float:
    """Freeze the cgroup2 group `cgroup` in a state in which CRIU can stop every task in it.

    Freezes and thaws the group several times if needed. Returns the time.monotonic() at which the last freezing began.
    Raises, with the group thawed, CannotCapture if a task is traced, or if the terminal has no foreground group for
    WAIT_S; Failed if a task is in vfork for WAIT_S; OSError. Reads one file of /proc for each thread and session
    leader.
    """
    with _opened_table(cgroup) as table:
        deadline = time.monotonic() + WAIT_S
        accept_deadline = time.monotonic() + ACCEPT_S
        while True:
            began = time.monotonic()
            cgroups.freeze(cgroup)
            states = settled_states(cgroup)
            reason = _why_not(states)
            is_awaited = table is not None and began < accept_deadline and any(sockets.unread(table, ("tcp",)))
            if reason is None and not is_awaited:
                return began
            calls.resume(cgroup)
            cgroups.thaw(cgroup)
            if reason is not None and (not reason.is_brief or time.monotonic() > deadline):
                raise reason.kind("capture", "the session's processes", reason.said, reason.next_step, code=reason.code)
            time.sleep(PAUSE_S)


def settled_states(cgroup: str) -> dict[int, TaskState]:
    """The states of the frozen group's tasks, by id. Waits up to WAIT_S until no task runs, because the kernel reports
    a group as frozen slightly before the last task has stopped.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        states = {}
        for tid in map(int, cgroups.read(cgroup, "cgroup.threads").split()):
            with contextlib.suppress(ProcessLookupError):
                states[tid] = task_state(tid)
        if all(task.state != "R" for task in states.values()) or time.monotonic() > deadline:
            return states
        time.sleep(SETTLE_S)


class _Reason(NamedTuple):
    """Why CRIU cannot stop or restore the tasks. `code`: of the error. `is_brief`: the state may end in a moment; if it
    does not, the capture fails with an error of class `kind`.
    """

    code: str
    said: str
    next_step: str
    is_brief: bool
    kind: type[CannotCapture | Failed] = CannotCapture


def _why_not(states: dict[int, TaskState]) -> _Reason | None:
    """None if CRIU can stop and restore the tasks."""
    for tid, task in states.items():
        if task.tracer:
            said = f"{task.name} (pid {tid}) is traced by {_name_of(task.tracer)}, so CRIU cannot trace it"
            return _Reason("criu-traced", said, "end the tracer (strace, gdb) and try again", is_brief=False)
    for tid, task in states.items():
        if task.state == "D":  # uninterruptible sleep: in a frozen group, only a parent in vfork
            said = f"{task.name} (pid {tid}) waits for a child that has not executed its program yet (vfork)"
            next_step = "try again later, end that process, or capture without memory: --tier respawn"
            return _Reason("criu-vfork", said, next_step, is_brief=True, kind=Failed)
    groups = {task.group for task in states.values()}
    for tid, task in states.items():
        if task.session == tid and _foreground_of(tid) not in groups:
            said = f"the foreground process group of the terminal of {task.name} (pid {tid}) has no process"
            next_step = "press Enter in that terminal, or close it, and try again"
            return _Reason("no-foreground", said, next_step, is_brief=True)
    return None


@contextlib.contextmanager
def _opened_table(cgroup: str) -> Iterator[socket.socket | None]:
    """The sockets of the group's network (`sockets.open_table`); None on the caller's network or without processes."""
    with contextlib.ExitStack() as held:
        table = None
        with contextlib.suppress(OSError, IndexError):
            pid = cgroups.members(cgroup)[0]
            table = None if sockets.shares_network(pid) else held.enter_context(sockets.open_table(pid))
        yield table


def _foreground_of(leader: int) -> int:
    """The foreground group of the terminal of session leader `leader`; without a terminal, the leader's own group."""
    try:
        stat = procfs.stat(leader)
    except ProcessLookupError:  # killed meanwhile
        return leader
    return stat.foreground if stat.foreground > 0 else stat.group


def _name_of(pid: int) -> str:
    with contextlib.suppress(ProcessLookupError):
        return f"{task_state(pid).name} (pid {pid})"
    return f"pid {pid}"
