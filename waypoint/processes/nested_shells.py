"""Finding interactive shells that run inside a session's shell: they lose their job control in a restore.

CRIU restores the controlling terminal of session leaders only (docs/criu.md), and a nested shell is not a leader.
"""

import signal
from collections.abc import Iterable

from waypoint.linux.tasks import procfs
from waypoint.linux.tasks.states import task_state

# Interactive shells keep the terminal open on a descriptor that users do not redirect: bash on 255, others on 10 or
# more.
_FIRST_OWN_FD = 10


def find(pids: Iterable[int]) -> list[str]:
    """The sorted program names of the nested interactive shells among `pids`. Processes that have ended are skipped."""
    return sorted(name for pid in pids if (name := _name_of_nested_shell(pid)))


def _name_of_nested_shell(pid: int) -> str:
    try:
        stat = procfs.stat(pid)
        if stat.session == pid or not _controls_jobs(pid) or not _keeps_terminal(pid):
            return ""
        # A subshell has the descriptor too, but controls no jobs. It was forked from its parent and so has the same
        # addresses of code and stack.
        is_subshell = procfs.stat(stat.parent)[-2:] == stat[-2:]
    except ProcessLookupError:
        return ""
    return "" if is_subshell else stat.name


def _controls_jobs(pid: int) -> bool:
    """Whether the process ignores SIGTTOU, as shells do to take the terminal back from a job. Other programs that keep
    the terminal open, such as node, do not need a controlling terminal.
    """
    return bool(task_state(pid).ignored >> (signal.SIGTTOU - 1) & 1)


def _keeps_terminal(pid: int) -> bool:
    files = procfs.open_files(pid)
    return any(fd >= _FIRST_OWN_FD and path.startswith(("/dev/pts/", "/dev/tty")) for fd, path in files.items())
