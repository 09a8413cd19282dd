"""Stopping a session at a moment at which CRIU can dump it, and saying at once if there will be none.

CRIU stops tasks by tracing them. It waits ten seconds for one that it cannot stop, with everything frozen, so what can
be seen beforehand is looked for here:

* A task that is traced already (strace, gdb). CRIU takes it for a zombie.
* A parent in vfork(2), as posix_spawn, Python's subprocess and dash call it. It sleeps uninterruptibly until its child
  has executed a program, and the cgroup freezer counts it as frozen. Such a moment lasts a fraction of a millisecond,
  so the group is thawed and frozen again until there is none.
* A terminal whose foreground process group has ended, which its shell has not noticed yet: such a moment is between
  any two commands of a loop. CRIU dumps it, and cannot restore it (`tty: Failed to set group`).
"""

import contextlib
import time

from waypoint.linux import cgroups, procfs, tasks
from waypoint.linux.tasks import TaskState
from waypoint.model.errors import CannotCapture

WAIT_S = 1.0
PAUSE_S = 0.001  # for the child to get as far as its program
SETTLE_S = 0.0001


def freeze_for_dump(cgroup: str, *, wait_s: float = WAIT_S) -> float:
    """Freeze the cgroup2 group `cgroup` at a moment at which CRIU can stop every task in it. It may run in between.

    Returns when it began to stand still, of time.monotonic(). Raises CannotCapture, with the group thawed, if a task is
    traced, or if one of the brief moments lasts for `wait_s` seconds; OSError as `cgroups.freeze` does. Costs one read
    of /proc for each thread, and one for each session's leader.
    """
    deadline = time.monotonic() + wait_s
    while True:
        began = time.monotonic()
        cgroups.freeze(cgroup)
        reason = _why_not(settled_states(cgroup))
        if reason is None:
            return began
        cgroups.thaw(cgroup)
        said, next_step, is_brief = reason
        if not is_brief or time.monotonic() > deadline:
            raise CannotCapture("stop the processes of", cgroup, said, next_step)
        time.sleep(PAUSE_S)


def settled_states(cgroup: str) -> dict[int, TaskState]:
    """The tasks of the frozen group, once none of them is on its way any more: the freezer counts a little early."""
    deadline = time.monotonic() + WAIT_S
    while True:
        states = {}
        for tid in map(int, cgroups.read(cgroup, "cgroup.threads").split()):
            with contextlib.suppress(ProcessLookupError):
                states[tid] = tasks.task_state(tid)
        if all(task.state != "R" for task in states.values()) or time.monotonic() > deadline:
            return states
        time.sleep(SETTLE_S)


def _why_not(states: dict[int, TaskState]) -> tuple[str, str, bool] | None:
    """Why CRIU could not stop them, what to do, and whether it will be over in a moment. None if it can."""
    for tid, task in states.items():
        if task.tracer:
            said = f"{task.name} (pid {tid}) is traced by {_name_of(task.tracer)}, and one process can have one tracer"
            return said, "end the tracer (strace, gdb) and try again", False
    for tid, task in states.items():
        if task.state == "D":  # in a frozen group nothing else is in uninterruptible sleep
            said = f"{task.name} (pid {tid}) waits for a child that has not executed its program yet (vfork)"
            return said, "end that process, or try again later", True
    groups = {task.group for task in states.values()}
    for tid, task in states.items():
        if task.session == tid and _foreground_of(tid) not in groups:
            said = f"the foreground process group of the terminal of {task.name} (pid {tid}) has no process"
            return said, "press Enter in that terminal, or end it, and try again", True
    return None


def _foreground_of(leader: int) -> int:
    """The group that has the terminal of a session's leader; the leader's own if it has none."""
    try:
        stat = procfs.stat(leader)
    except ProcessLookupError:  # killed just now
        return leader
    return stat.foreground if stat.foreground > 0 else stat.group


def _name_of(pid: int) -> str:
    with contextlib.suppress(ProcessLookupError):
        return f"{tasks.task_state(pid).name} (pid {pid})"
    return f"pid {pid}"
