"""The last steps of every process that starts in a session: open its terminal, give up rights, execute its program."""

import contextlib
import os
import signal
import sys
from typing import NoReturn

from waypoint.launch.spec import Identity
from waypoint.linux.tasks import namespaces
from waypoint.linux.tty import ptys

MASTER_FD = 3  # the descriptor at which pid 1 keeps the master side of the terminal

# Docker's default set without mknod: enough for package managers, su and servers, nothing over the host's kernel.
KEPT_CAPABILITIES = frozenset(namespaces.CAPABILITIES.values())


def open_terminal(rows: int, cols: int, uid: int) -> None:
    """Open a new terminal in the session's own devpts: the master as MASTER_FD, the slave, which `uid` owns, as 0, 1
    and 2. MASTER_FD must be the lowest free descriptor. Raises OSError.
    """
    master = os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY)
    if master != MASTER_FD:
        raise OSError(0, f"the master became fd {master}, not {MASTER_FD}")
    number = ptys.unlock_slave(master)
    ptys.set_size(master, rows, cols)
    slave = os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY)
    os.fchown(slave, uid, 5)
    for fd in (0, 1, 2):
        os.dup2(slave, fd)
    os.close(slave)
    os.set_inheritable(MASTER_FD, True)  # noqa: FBT003 - the call takes no keywords


def become(identity: Identity, argv: list[str], env: dict[str, str], cwd: list[str]) -> NoReturn:
    """Execute `argv` as `identity`, in the first folder of `cwd` that can be entered. Signal actions, the signal mask
    and the umask are set to their defaults; `env` is the whole environment. Raises OSError.
    """
    namespaces.limit_capabilities(KEPT_CAPABILITIES)
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python ignores or catches some; exec would hand that on
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.setgroups(identity.groups)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
    _enter_first(cwd)
    os.execve(argv[0], argv, env)
    sys.exit(1)


def _enter_first(folders: list[str]) -> None:
    """Change to the first of `folders` that can be entered. Raises the last one's OSError if none can."""
    for folder in folders[:-1]:
        with contextlib.suppress(OSError):
            os.chdir(folder)
            return
    os.chdir(folders[-1])
