"""The facts about a task that decide whether a tracer can stop it (proc_pid_status(5))."""

import errno
import os
from typing import NamedTuple


class TaskState(NamedTuple):
    """A task's name, state (one letter, see ps(1)), tracer (its pid, or 0), process group id, session id, and ignored
    signals (bit N - 1 for signal N).

    All ids are those of the reader's pid namespace.
    """

    name: str
    state: str
    tracer: int
    group: int
    session: int
    ignored: int


def task_state(tid: int) -> TaskState:
    """Return the state of the task `tid`, a process or any thread. Raises ProcessLookupError if the task has ended."""
    path = f"/proc/{tid}/status"
    try:
        with open(path, "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), path) from None
    fields = dict(line.split(b":\t", 1) for line in text.splitlines() if b":\t" in line)
    numbers = (int(fields[name].split()[0]) for name in (b"TracerPid", b"NSpgid", b"NSsid"))
    tracer, group, session = numbers
    state = fields[b"State"][:1].decode("ascii")
    ignored = int(fields[b"SigIgn"], 16)
    return TaskState(fields[b"Name"].decode(errors="backslashreplace"), state, tracer, group, session, ignored)


def system_call(tid: int) -> list[int]:
    """Return the number of the system call in which the task sleeps, and its six arguments; [-1] if there is none.
    Raises OSError if the task has ended.
    """
    with open(f"/proc/{tid}/syscall") as file:
        number, *rest = file.read().split()
    return [int(number), *(int(word, 16) for word in rest[:6])] if number not in ("running", "-1") else [-1]
