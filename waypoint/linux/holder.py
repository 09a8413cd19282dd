"""The program that holds all tasks of a session where there is no cgroup: `python -I -S holder.py PID`.

It seizes the descendants of PID, the session's first process, and PID itself, has them stop (ptrace(2)), prints when it
began (time.monotonic) once all stand still, and ends when its stdin is closed. With it ends the tracing, and all go on
as if nobody had looked. A stop by ptrace is no stop by a signal: no parent is told of it.

A task has one tracer. One that another of these tasks traces (strace, gdb) is left to that, which stands still: it runs
at most until it next stops for its tracer. If somebody else traces one, this says so in words, in place of the time.
"""

import contextlib
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.linux.tasks import procfs, ptrace
from waypoint.linux.tasks.states import in_words, task_state

_LOOK_S = 0.0002
# In vfork(2) a task waits for its child, which is held, and cannot stop itself; nor does it run.
_STILL = "tTDZX"
_ENDED = "ZX"


def hold(first: int) -> str:
    """Return when every task stands still: no new one was found after all that were found had stopped. Returns "", or
    in words, which task somebody else traces.
    """
    tracers: dict[int, int] = {}
    while new := _tasks(first) - tracers.keys():
        for tid in new:
            _seize(tid)
        for tid in new:
            tracers[tid] = _wait_still(tid)
    others = ((tid, tracer) for tid, tracer in tracers.items() if tracer and tracer not in tracers)
    return next((f"{in_words(tid)} is traced by {in_words(tracer)}" for tid, tracer in others), "")


def _tasks(first: int) -> set[int]:
    tasks: set[int] = set()
    for pid in procfs.family(first):
        with contextlib.suppress(ProcessLookupError):
            tasks.update(procfs.threads(pid))
    return tasks


def _seize(tid: int) -> None:
    with contextlib.suppress(OSError):  # it has ended, or another traces it
        ptrace.seize(tid)
        ptrace.interrupt(tid)


def _wait_still(tid: int) -> int:
    """Return when the task stands still: 0; or at once, if another traces it: the pid of that."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            task = task_state(tid)
            if task.tracer not in (0, os.getpid()):
                return task.tracer
            if task.state in _STILL and (task.tracer or task.state in _ENDED):
                return 0
            if not task.tracer:  # its tracer has just let it go
                _seize(tid)
            time.sleep(_LOOK_S)
    return 0


if __name__ == "__main__":
    began = time.monotonic()
    said = hold(int(sys.argv[1]))
    os.write(1, f"{said or began}\n".encode())
    os.read(0, 1)
