"""The facts about a task that decide whether CRIU can stop it (proc_pid_status(5))."""

import signal
from typing import NamedTuple

from waypoint.linux.tasks import procfs

_MOST_BYTES = 1 << 20  # `status` names up to 65,536 groups


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
    text = b"\n" + procfs.raw(tid, "status", _MOST_BYTES)

    def field(name: bytes) -> bytes:
        start = text.index(b"\n%b:\t" % name) + len(name) + 3
        return text[start : text.index(b"\n", start)]

    numbers = (int(field(name).split()[0]) for name in (b"TracerPid", b"NSpgid", b"NSsid", b"Tgid"))
    tracer, group, session, process = numbers
    pending = int(field(b"SigPnd"), 16) | int(field(b"ShdPnd"), 16)
    return TaskState(
        name=field(b"Name").decode(errors="backslashreplace"),
        state=field(b"State")[:1].decode("ascii"),
        tracer=tracer,
        group=group,
        session=session,
        ignored=int(field(b"SigIgn"), 16),
        process=process,
        has_trap=bool(pending >> (signal.SIGTRAP - 1) & 1),
        is_leader_outside=field(b"NSsid").split()[-1] == b"0",
        no_new_privs=field(b"NoNewPrivs") == b"1",
    )


def system_call(tid: int) -> list[int]:
    """Return the number of the system call in which the task sleeps, and its six arguments; [-1] if there is none.
    Raises OSError if the task has ended.
    """
    number, *rest = procfs.raw(tid, "syscall", _MOST_BYTES).split()
    return [int(number), *(int(word, 16) for word in rest[:6])] if number not in (b"running", b"-1") else [-1]
