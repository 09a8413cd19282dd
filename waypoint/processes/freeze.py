"""Freezing a session in a state in which CRIU can dump it, or telling at once why that is not possible.

CRIU stops tasks by tracing them (ptrace). If a task cannot be stopped, CRIU waits ten seconds while the session is
frozen. So the states that CRIU cannot handle are looked for before:

* A task that another program traces (strace, gdb). CRIU reports it as a zombie.
* A task in vfork(2), as posix_spawn, Python's subprocess and dash call it. The task sleeps uninterruptibly until its
  child has executed a program, and the cgroup freezer counts it as frozen. This lasts a fraction of a millisecond, so
  the group is thawed and frozen again.
* A terminal whose foreground process group has ended and whose shell has not noticed that yet. This state occurs
  between any two commands of a loop. CRIU can dump it, but not restore it (`tty: Failed to set group`). The group is
  thawed and frozen again here too.
* A process that the terminal has stopped, since it is in the background and reads from there (SIGTTIN) or changes it
  (SIGTTOU). CRIU refuses all stops but those by SIGSTOP and SIGTSTP. So it is stopped by SIGSTOP instead: told to go on
  and to stop in the frozen group, it stops when that is thawed, and runs nothing of its own before.
* A TCP connection that nobody has accepted yet: CRIU leaves it out. A server that works accepts it at once, so the
  group is thawed and frozen again, for a while; a server that does not come to it is dumped as it is.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

from waypoint.linux.net import sockets
from waypoint.linux.tasks import cgroups, procfs, ptrace
from waypoint.linux.tasks.states import TaskState, in_words, state_now, task_state
from waypoint.model.errors import CannotCapture, Failed

WAIT_S = 1.0
PAUSE_S = 0.001  # how long the group runs between two attempts
SETTLE_S = 0.0001
ACCEPT_S = 0.1  # how long, at most, for a moment at which no connection waits to be accepted


_STOPS_OF_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)
_END_TRACER = "end the tracer (strace, gdb) and try again"


def freeze_for_dump(cgroup: str, apart: Collection[int] = ()) -> float:
    """Freeze the cgroup2 group `cgroup` in a state in which CRIU can stop every task in it.

    `apart`: processes of the session that are frozen already, outside of the group, and not to be dumped. The group may
    be frozen and thawed several times for that; TCP connections that wait to be accepted are then rare, but there may
    be some (`sockets.unread`). Returns the time.monotonic() at which the last freezing began. Raises, with the group
    thawed, CannotCapture if a task is traced, or if the terminal has no foreground group for WAIT_S; Failed if a task
    is in vfork, or is just being stopped by its terminal, for so long: that is something that happens, not what the
    task is; OSError as `cgroups.freeze` does. Costs one read of /proc for each thread and each session leader.
    """
    with _opened_table(cgroup) as table:
        deadline = time.monotonic() + WAIT_S
        accept_deadline = time.monotonic() + ACCEPT_S
        while True:
            began = time.monotonic()
            cgroups.freeze(cgroup)
            states = settled_states(cgroup)
            reason = _why_not(states, apart) or _stopped_by_terminal(cgroup, states)
            is_awaited = table is not None and began < accept_deadline and bool(list(sockets.unread(table, ("tcp",))))
            if reason is None and not is_awaited:
                return began
            cgroups.thaw(cgroup)
            if reason is not None and (not reason.is_brief or time.monotonic() > deadline):
                raise reason.kind("stop the processes of", cgroup, reason.said, reason.next_step)
            time.sleep(PAUSE_S)


def settled_states(cgroup: str) -> dict[int, TaskState]:
    """The states of the frozen group's tasks, by id, as soon as none is running any more, at most after WAIT_S seconds.

    The kernel reports a group as frozen slightly before the last task has stopped.
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


def freeze(cgroup: str) -> float:
    """Freeze the group where no CRIU is to come. Returns the time.monotonic() at which that began. Raises Failed if a
    program outside of a group without a cgroup traces one of its tasks (kin.py), OSError as `cgroups.freeze` does.
    """
    try:
        return cgroups.freeze(cgroup)
    except PermissionError as error:
        raise Failed("stop", "the processes of the session", error.strerror or "", _END_TRACER) from error


class _Reason(NamedTuple):
    """Why CRIU cannot stop, or not restore, the tasks. `is_brief`: the state may be over in a moment. `kind`: of the
    error if it is not.
    """

    said: str
    next_step: str
    is_brief: bool
    kind: type[CannotCapture | Failed] = CannotCapture


def _why_not(states: dict[int, TaskState], apart: Collection[int]) -> _Reason | None:
    """None if CRIU can stop and restore the tasks."""
    for tid, task in states.items():
        if task.tracer:
            said = f"{in_words(tid)} is traced by {in_words(task.tracer)}, so CRIU cannot trace it"
            return _Reason(said, _END_TRACER, is_brief=False)
    for tid, task in states.items():
        if task.state == "D":  # uninterruptible sleep: in a frozen group, only a parent in vfork
            said = f"{in_words(tid)} waits for a child that has not executed its program yet (vfork)"
            next_step = "try again later, end that process, or ask for less: --tier respawn"
            return _Reason(said, next_step, is_brief=True, kind=Failed)
    groups = {task.group for task in states.values()} | {_group_of(pid) for pid in apart}
    for tid, task in states.items():
        if task.session == tid and _foreground_of(tid) not in groups:
            said = f"the foreground process group of the terminal of {in_words(tid)} has no process"
            return _Reason(said, "press Enter in that terminal, or close it, and try again", is_brief=True)
    return None


def _stopped_by_terminal(cgroup: str, states: dict[int, TaskState]) -> _Reason | None:
    """None if no process is stopped by SIGTTIN or SIGTTOU, and none is about to be stopped. Those that are so stopped
    are stopped by SIGSTOP as soon as the group is thawed.
    """
    stopped = [tid for tid, task in states.items() if task.state == "T"]
    found = [tid for tid in stopped if _stop_signal(tid) in _STOPS_OF_TERMINAL]
    for tid in found:
        os.kill(tid, signal.SIGCONT)
        os.kill(tid, signal.SIGSTOP)  # takes SIGCONT away where a handler waits for it
    if stopped:
        settled_states(cgroup)
    found += [tid for tid in states.keys() - {*stopped} if states[tid].waiting >> signal.SIGSTOP - 1 & 1]
    if not found:
        return None
    said = f"{in_words(found[0])} is in the background, and the terminal has stopped it for using that"
    return _Reason(said, "try again", is_brief=True, kind=Failed)


def _stop_signal(tid: int) -> int:
    """By which signal the task's process is stopped; 0 if that cannot be told."""
    with contextlib.suppress(OSError):
        return ptrace.stop_signal(tid)
    return 0


@contextlib.contextmanager
def _opened_table(cgroup: str) -> Iterator[socket.socket | None]:
    """The sockets of the group's network (`sockets.open_table`); None if that is the caller's, or nobody is there."""
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


def _group_of(pid: int) -> int:
    found = state_now(pid)
    return found.group if found else 0
