"""Settings of tasks that CRIU's images lack: sched_setaffinity(2), ioprio_set(2), personality(2), core(5) and
PR_SET_TIMERSLACK(2const).

Values are texts. Every function raises OSError if the task has ended.
"""

import errno
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from waypoint.linux.calls import libc

_OF_PROCESS = 1  # IOPRIO_WHO_PROCESS, which means one task
_CLASS_SHIFT, _REAL_TIME = 13, 1
PERSONALITY = "personality"


class _Setting(NamedTuple):
    """`give`: None if only the task itself can set the value. `is_own`: each thread has a value of its own."""

    read: Callable[[int], str]
    give: Callable[[int, str], None] | None
    is_own: bool = True


def _affinity(tid: int) -> str:
    return ",".join(map(str, sorted(os.sched_getaffinity(tid))))


def _give_affinity(tid: int, value: str) -> None:
    os.sched_setaffinity(tid, map(int, value.split(",")))


def _io_class(tid: int) -> str:
    return str(libc.syscall("ioprio_get", _OF_PROCESS, tid))


def _give_io_class(tid: int, value: str) -> None:
    if int(value) >> _CLASS_SHIFT == _REAL_TIME:  # which no task of a session may choose
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    libc.syscall("ioprio_set", _OF_PROCESS, tid, int(value))


def _file(name: str) -> Callable[[int], str]:
    def read(tid: int) -> str:
        with open(f"/proc/{tid}/{name}") as file:
            return file.read().strip()

    return read


def _give_file(name: str, base: int) -> Callable[[int, str], None]:
    def give(tid: int, value: str) -> None:
        with open(f"/proc/{tid}/{name}", "w") as file:
            file.write(str(int(value, base)))

    return give


SETTINGS = {
    "affinity": _Setting(_affinity, _give_affinity),
    "I/O class": _Setting(_io_class, _give_io_class),
    "timer slack": _Setting(_file("timerslack_ns"), _give_file("timerslack_ns", 10)),
    "core dump filter": _Setting(_file("coredump_filter"), _give_file("coredump_filter", 16), is_own=False),
    PERSONALITY: _Setting(_file("personality"), None),
}


def own() -> dict[str, str]:
    """The settings of the caller, which a session's first task inherits."""
    return _read(os.getpid(), SETTINGS)


def differing(pid: int, tids: Iterable[int], usual: dict[str, str]) -> dict[int, dict[str, str]]:
    """By task of the process `pid`, the settings that differ from `usual`. A task that ends has no value of some. Tasks
    that have ended are skipped.
    """
    found = {}
    for tid in tids:
        try:
            now = _read(tid, [name for name, one in SETTINGS.items() if one.is_own or tid == pid])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if changed := {name: value for name, value in now.items() if value and value != usual[name]}:
            found[tid] = changed
    return found


def give(tid: int, name: str, value: str) -> None:
    """Give the task the setting; not PERSONALITY. Raises KeyError for an unknown name."""
    setter = SETTINGS[name].give
    assert setter is not None
    setter(tid, value)


def _read(tid: int, names: Iterable[str]) -> dict[str, str]:
    return {name: SETTINGS[name].read(tid) for name in names}
