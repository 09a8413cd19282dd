"""Shells within a session's shell. CRIU gives a controlling terminal to session leaders only (docs/criu.md), so after a
restore these can hand it to no job any more.
"""

from collections.abc import Iterable

from waypoint.linux import procfs

# Interactive shells keep the terminal open above the descriptors that users may redirect: bash at 255, others from 10.
_FIRST_OWN_FD = 10


def find(pids: Iterable[int]) -> list[str]:
    """The names of those among the processes that control jobs on a terminal of which they are not the leader, sorted.

    What ends meanwhile counts as none.
    """
    return sorted(name for pid in pids if (name := _name_of_nested_shell(pid)))


def _name_of_nested_shell(pid: int) -> str:
    try:
        stat = procfs.stat(pid)
        if stat.session == pid or not _keeps_terminal(pid):
            return ""
        # A subshell has the descriptor as well, but is its parent's copy: it controls nothing.
        is_copy = procfs.stat(stat.parent)[-2:] == stat[-2:]
    except ProcessLookupError:
        return ""
    return "" if is_copy else stat.name


def _keeps_terminal(pid: int) -> bool:
    files = procfs.open_files(pid)
    return any(fd >= _FIRST_OWN_FD and path.startswith(("/dev/pts/", "/dev/tty")) for fd, path in files.items())
