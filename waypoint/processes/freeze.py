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
* A task that has restricted itself by Landlock (landlock.py), or may have done so: the capture fails.
* A TCP connection that no program has accepted yet: CRIU leaves it out. The group is thawed and frozen again for up to
  ACCEPT_S, so that the server can accept the connection. Afterwards it is dumped without the connection.
"""

import contextlib
import socket
import time
from collections.abc import Iterator

from waypoint.linux.net import sockets
from waypoint.linux.tasks import cgroups
from waypoint.linux.tasks.states import TaskState, task_state
from waypoint.processes import calls, landlock, refusals

WAIT_S = 1.0
PAUSE_S = 0.001  # how long the group runs between two attempts
SETTLE_S = 0.0001
ACCEPT_S = 0.1


def freeze_for_dump(cgroup: str) -> float:
    """Freeze the cgroup2 group `cgroup` in a state in which CRIU can stop every task in it.

    Freezes and thaws the group several times if needed. Returns the time.monotonic() at which the last freezing began.
    Raises, with the group thawed, CannotCapture if a task is traced or has a Landlock domain, or if the terminal has no
    foreground group for WAIT_S; Failed if a task is in vfork for WAIT_S; OSError. Reads two files of /proc for each
    thread, and one for each session leader.
    """
    with _opened_table(cgroup) as table:
        deadline = time.monotonic() + WAIT_S
        accept_deadline = time.monotonic() + ACCEPT_S
        while True:
            began = time.monotonic()
            cgroups.freeze(cgroup)
            states = settled_states(cgroup)
            refusal = min(refusals.of_tasks(states), key=lambda one: one.is_brief, default=None)
            is_awaited = table is not None and began < accept_deadline and any(sockets.unread(table, ("tcp",)))
            if refusal is None and not is_awaited:
                try:
                    if landlock.check(cgroup, states) | calls.finish_writes(states):
                        settled_states(cgroup)
                except BaseException:
                    _thaw(cgroup)
                    raise
                return began
            _thaw(cgroup)
            if refusal is not None and (not refusal.is_brief or time.monotonic() > deadline):
                raise refusal.error()
            time.sleep(PAUSE_S)


def _thaw(cgroup: str) -> None:
    calls.resume(cgroup)
    cgroups.thaw(cgroup)


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


@contextlib.contextmanager
def _opened_table(cgroup: str) -> Iterator[socket.socket | None]:
    """The sockets of the group's network (`sockets.open_table`); None on the caller's network or without processes."""
    with contextlib.ExitStack() as held:
        table = None
        with contextlib.suppress(OSError, IndexError):
            pid = cgroups.members(cgroup)[0]
            table = None if sockets.shares_network(pid) else held.enter_context(sockets.open_table(pid))
        yield table
