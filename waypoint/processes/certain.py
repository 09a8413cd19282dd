"""Whether CRIU will certainly dump a session: it has dumped all programs of the session before, and the processes have
nothing open or mapped but kinds of things that CRIU dumps in every state. What this module does not know may be dumped
as well, but only CRIU can tell.

The programs count because nothing in /proc shows some of the reasons for which CRIU refuses a process (PR_SET_MDWE).
"""

import os
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from waypoint.linux.tasks import mappings, procfs

_DEVICES = r"/dev/(?:null|zero|full|random|urandom|pts/(?:ptmx|\d+))"
_OPEN = re.compile(rf"{_DEVICES}|pipe:\[\d+\]|/(?!dev/|proc/|sys/|memfd:).*")
_ANONYMOUS = re.compile(r"anon_inode:(?:inotify|\[(?:eventfd|signalfd|timerfd)\])")
_EPOLL = "anon_inode:[eventpoll]"
_MAPPED = re.compile(r"|\[(?:heap|stack|vdso|vvar|vvar_vclock|vsyscall|anon:.*)\]|/(?!dev/|proc/|sys/|memfd:|SYSV).*")
_GONE = " (deleted)"
_MOST_EPOLL_BYTES = 1 << 16


class Program(NamedTuple):
    """A version of a program."""

    path: str
    size: int
    mtime_ns: int


def programs(pids: Iterable[int]) -> set[Program]:
    """The programs of these processes. Raises OSError if one has ended."""
    found = set()
    for pid in pids:
        facts = os.stat(procfs.executable_link(pid))
        found.add(Program(procfs.executable(pid), facts.st_size, facts.st_mtime_ns))
    return found


def is_dumped(pids: Collection[int], before: Collection[Program]) -> bool:
    """Whether CRIU will certainly dump these processes. `before`: the programs that it has dumped before. Raises
    OSError if a process has ended.
    """
    return programs(pids) <= set(before) and all(_is_dumped(pid) for pid in pids)


def _is_dumped(pid: int) -> bool:
    found = procfs.open_files(pid)
    return all(_is_open_dumped(pid, fd, path, found) for fd, path in found.items()) and all(
        _MAPPED.fullmatch(one.path) and not one.path.endswith(_GONE) for one in mappings.read_mappings(pid)
    )


def _is_open_dumped(pid: int, fd: int, path: str, found: Collection[int]) -> bool:
    if path == _EPOLL:  # it must not await a file that the process has closed
        return _awaited(procfs.fdinfo(pid, fd, _MOST_EPOLL_BYTES)) <= set(found)
    return bool(_OPEN.fullmatch(path) or _ANONYMOUS.fullmatch(path)) and not path.endswith(_GONE)


def _awaited(info: bytes) -> set[int]:
    return {int(line.split()[1]) for line in info.splitlines() if line.startswith(b"tfd:")}
