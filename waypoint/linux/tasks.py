"""What keeps a task from being stopped by a tracer (proc_pid_status(5)). Raises ProcessLookupError when it is gone."""

import errno
import os
from typing import NamedTuple


class TaskState(NamedTuple):
    """`state`: one letter, as ps(1) shows it. `tracer`: pid of the process that traces it, 0 if none does. `group`,
    `session`: the ids of its process group and session.
    """

    name: str
    state: str
    tracer: int
    group: int
    session: int


def task_state(tid: int) -> TaskState:
    """Of one task, also of a thread that is not its process's first."""
    path = f"/proc/{tid}/status"
    try:
        with open(path, "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), path) from None
    fields = dict(line.split(b":\t", 1) for line in text.splitlines() if b":\t" in line)
    numbers = (int(fields[name].split()[0]) for name in (b"TracerPid", b"NSpgid", b"NSsid"))
    return TaskState(os.fsdecode(fields[b"Name"]), fields[b"State"][:1].decode("ascii"), *numbers)
