"""Finding interactive shells that run inside a session's shell: they lose their job control in a restore.

CRIU gives a controlling terminal back to session leaders only (docs/criu.md). A nested shell is not one, so after a
restore it cannot put a job in the foreground.
"""

from collections.abc import Iterable

from waypoint.linux.tasks import procfs

# An interactive shell keeps the terminal open on a descriptor that users do not redirect: bash on 255, others from 10.
_FIRST_OWN_FD = 10


def find(pids: Iterable[int]) -> list[str]:
    """The sorted program names of the nested interactive shells among `pids`. Processes that have ended are skipped."""
    return sorted(name for pid in pids if (name := _name_of_nested_shell(pid)))


def _name_of_nested_shell(pid: int) -> str:
    try:
        stat = procfs.stat(pid)
        if stat.session == pid or not _keeps_terminal(pid):
            return ""
        # A subshell, which controls no jobs, has the descriptor too. Being forked from its parent, it has the same
        # addresses of code and stack.
        is_subshell = procfs.stat(stat.parent)[-2:] == stat[-2:]
    except ProcessLookupError:
        return ""
    return "" if is_subshell else stat.name


def _keeps_terminal(pid: int) -> bool:
    files = procfs.open_files(pid)
    return any(fd >= _FIRST_OWN_FD and path.startswith(("/dev/pts/", "/dev/tty")) for fd, path in files.items())
