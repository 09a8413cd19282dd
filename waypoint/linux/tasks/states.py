"""The facts about a task that decide whether a tracer can stop it (proc_pid_status(5)), and others in their place."""

import contextlib
import os
from collections.abc import Iterable
from typing import NamedTuple

from waypoint.linux.storage import mounts
from waypoint.linux.tasks import procfs

_MOST_BYTES = 1 << 20  # a process may have 65,536 groups
_OF_ENDED = {b"State": b"Z (zombie)", b"Threads": b"1", b"Seccomp": b"0"}


class TaskState(NamedTuple):
    """A task's name, state (one letter, as in ps(1)), tracer (its pid, 0 if none), process group and session ids, and
    which signals it blocks and ignores, and which wait for it or its process (bit N - 1 for signal N).

    All ids are those of the reader's pid namespace.
    """

    name: str
    state: str
    tracer: int
    group: int
    session: int
    blocked: int
    ignored: int
    waiting: int


def task_state(tid: int) -> TaskState:
    """The state of the task `tid`, a process or any thread. Raises ProcessLookupError if the task is gone."""
    # Of hundreds of threads while a session stands still: so not all lines are taken apart.
    text = b"\n" + procfs.raw(tid, "status", _MOST_BYTES)
    tracer, group, session = (int(_field(text, name).split()[0]) for name in (b"TracerPid", b"NSpgid", b"NSsid"))
    state = _field(text, b"State")[:1].decode("ascii")
    blocked, ignored, own, shared = (
        int(_field(text, name), 16) for name in (b"SigBlk", b"SigIgn", b"SigPnd", b"ShdPnd")
    )
    name = _field(text, b"Name").decode(errors="backslashreplace")
    return TaskState(name, state, tracer, group, session, blocked, ignored, own | shared)


def state_now(tid: int) -> TaskState | None:
    """As `task_state`; None if the task is gone."""
    with contextlib.suppress(ProcessLookupError):
        return task_state(tid)
    return None


def in_words(pid: int) -> str:
    """A process, or a thread, by its name and its id in its session; by its id here, if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        return f"{task_state(pid).name} (pid {procfs.session_pid(pid)})"
    return f"pid {pid}"


def _field(text: bytes, name: bytes) -> bytes:
    """What the line `name` says. The name of a task, in which the kernel escapes line feeds, can imitate none."""
    start = text.index(b"\n" + name + b":\t") + len(name) + 3
    return text[start : text.index(b"\n", start)]


def show_as_ended(pids: Iterable[int]) -> None:
    """Cover the folder of each process in /proc, in the caller's mount namespace, by one with as much as is asked for
    of a process that has ended and that nobody has waited for: without threads and children. Raises OSError.
    """
    for pid in pids:
        fields = [line.split(b":\t", 1) for line in procfs.lines(pid, "status")]
        status = b"".join(b"%s:\t%s\n" % (name, _OF_ENDED.get(name, value)) for name, value in fields)
        folder = f"/proc/{pid}"
        mounts.mount("tmpfs", folder, "tmpfs", 0, "mode=755")
        os.makedirs(f"{folder}/task/{pid}")
        for name, content in (("status", status), (f"task/{pid}/children", b"")):
            with open(f"{folder}/{name}", "wb") as file:
                file.write(content)
