"""The facts about a task that decide whether CRIU can stop it (proc_pid_status(5))."""

import errno
import os
import signal
from typing import NamedTuple


class TaskState(NamedTuple):
    """A task's name, state (one letter, see ps(1)), tracer (its pid, or 0), process group id, session id, ignored
    signals (bit N - 1 for signal N), and process. `has_trap`: a SIGTRAP waits for it. `is_leader_outside`: the leader
    of its session is not in its pid namespace. `no_new_privs`: it has this attribute (PR_SET_NO_NEW_PRIVS(2const)).

    All ids are those of the reader's pid namespace.
    """

    name: str
    state: str
    tracer: int
    group: int
    session: int
    ignored: int
    process: int
    has_trap: bool
    is_leader_outside: bool
    no_new_privs: bool


def task_state(tid: int) -> TaskState:
    """Return the state of the task `tid`, a process or any thread. Raises ProcessLookupError if the task has ended."""
    path = f"/proc/{tid}/status"
    try:
        with open(path, "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), path) from None
    fields = dict(line.split(b":\t", 1) for line in text.splitlines() if b":\t" in line)
    numbers = (int(fields[name].split()[0]) for name in (b"TracerPid", b"NSpgid", b"NSsid", b"Tgid"))
    tracer, group, session, process = numbers
    pending = int(fields[b"SigPnd"], 16) | int(fields[b"ShdPnd"], 16)
    return TaskState(
        name=fields[b"Name"].decode(errors="backslashreplace"),
        state=fields[b"State"][:1].decode("ascii"),
        tracer=tracer,
        group=group,
        session=session,
        ignored=int(fields[b"SigIgn"], 16),
        process=process,
        has_trap=bool(pending >> (signal.SIGTRAP - 1) & 1),
        is_leader_outside=fields[b"NSsid"].split()[-1] == b"0",
        no_new_privs=fields[b"NoNewPrivs"] == b"1",
    )


def system_call(tid: int) -> list[int]:
    """Return the number of the system call in which the task sleeps, and its six arguments; [-1] if there is none.
    Raises OSError if the task has ended.
    """
    with open(f"/proc/{tid}/syscall") as file:
        number, *rest = file.read().split()
    return [int(number), *(int(word, 16) for word in rest[:6])] if number not in ("running", "-1") else [-1]
