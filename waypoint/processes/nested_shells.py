"""Finding interactive shells that run inside a session's shell: they lose their job control in a restore.

CRIU gives a controlling terminal back to session leaders only (docs/criu.md). A nested shell is not one, so after a
restore it cannot put a job in the foreground.
"""

import signal
from collections.abc import Iterable

from waypoint.linux.tasks import procfs
from waypoint.linux.tasks.states import task_state

# An interactive shell keeps the terminal open on a descriptor that users do not redirect: bash on 255, others from 10.
_FIRST_OWN_FD = 10


def find(pids: Iterable[int]) -> list[str]:
    """The sorted program names of the nested interactive shells among `pids`. Processes that have ended are skipped."""
    return sorted(name for pid in pids if (name := _name_of_nested_shell(pid)))


def _name_of_nested_shell(pid: int) -> str:
    try:
        stat = procfs.stat(pid)
        if stat.session == pid or not _controls_jobs(pid) or not _keeps_terminal(pid):
            return ""
        # A subshell, which controls no jobs, has the descriptor too. Being forked from its parent, it has the same
        # addresses of code and stack.
        is_subshell = procfs.stat(stat.parent).program == stat.program
    except ProcessLookupError:
        return ""
    return "" if is_subshell else stat.name


def _controls_jobs(pid: int) -> bool:
    """True if the process could give the terminal to a job and take it back: who does that from the background ignores
    the signal for it. Other programs that keep the terminal open, such as node, need no controlling one.
    """
    return bool(task_state(pid).ignored >> (signal.SIGTTOU - 1) & 1)


def _keeps_terminal(pid: int) -> bool:
    files = procfs.open_files(pid)
    return any(fd >= _FIRST_OWN_FD and path.startswith(("/dev/pts/", "/dev/tty")) for fd, path in files.items())
