"""The last steps of every process that starts in a session: open its terminal, give up rights, execute its program."""

import contextlib
import os
import resource
import signal
import sys
from typing import NoReturn

from waypoint.launch.spec import Identity
from waypoint.launch.walls import refused
from waypoint.linux.calls import abilities, hard_limits
from waypoint.linux.storage import beneath
from waypoint.linux.storage.beneath import MountPlace
from waypoint.linux.tasks import namespaces
from waypoint.linux.tty import ptys
from waypoint.model.records import Seccomp

_MASTERS = "dev/pts/ptmx"
TERMINALS_GROUP = 5  # tty
MASTER_FD = 3  # the descriptor at which pid 1 keeps the master side of the terminal

# Docker's default set without mknod: enough for package managers, su and servers, and nothing that changes the host's
# kernel.
KEPT_CAPABILITIES = frozenset(namespaces.CAPABILITIES.values())

# The soft and hard resource limits of every process of a session (getrlimit(2)), independent of the user who started
# the daemon. They are the limits of a login on a machine with systemd, with two exceptions. The limit of open files is
# higher, because few programs raise their own soft limit. The limit of message queues is half of the usual: the kernel
# counts message queues and pending signals also for the owner of the session's user namespace, who may be root and
# needs the other half.
_NONE = resource.RLIM_INFINITY
# 1 byte disables core dumps to files, and also to a program of the host, which the kernel would run as root (core(5)).
# With 0 the kernel would still run that program (fs/coredump.c).
_NO_CORE = 1
_MIB = 1 << 20
RESOURCE_LIMITS = {
    resource.RLIMIT_AS: (_NONE, _NONE),
    resource.RLIMIT_CORE: (_NO_CORE, _NONE),
    resource.RLIMIT_CPU: (_NONE, _NONE),
    resource.RLIMIT_DATA: (_NONE, _NONE),
    resource.RLIMIT_FSIZE: (_NONE, _NONE),
    resource.RLIMIT_MEMLOCK: (8 * _MIB, 8 * _MIB),
    resource.RLIMIT_MSGQUEUE: (409_600, 409_600),
    resource.RLIMIT_NICE: (0, 0),
    resource.RLIMIT_NOFILE: (16_384, 524_288),
    resource.RLIMIT_NPROC: (_NONE, _NONE),
    resource.RLIMIT_RSS: (_NONE, _NONE),
    resource.RLIMIT_RTPRIO: (0, 0),
    resource.RLIMIT_SIGPENDING: (65_536, 65_536),
    resource.RLIMIT_STACK: (8 * _MIB, _NONE),
}


# The largest share of the launcher's own hard limit of open files that a session may have. The kernel counts
# descriptors in flight in Unix sockets by user id, and all sessions of a home have the same. If the count exceeds the
# sender's soft limit, the sender cannot send a descriptor. The launcher and CRIU have a higher limit than sessions, so
# no session can prevent them from sending.
_OPEN_FILES_SHARE = 0.75
# The kernel's default. systemd allows 1,000 times as many, but some programs allocate a table with an entry for each.
_MOST_OPEN_FILES = 1 << 20


def set_resource_limits() -> None:
    """Set RESOURCE_LIMITS for this process, as far as it may raise its limits (CAP_SYS_RESOURCE).

    There are two exceptions. The limit of open files is set to the highest possible value, because `execute` sets the
    session's limit later. The limit of pending signals is at most half of the limit that this process had.
    """
    most = min(hard_limits.most_open_files(), _MOST_OPEN_FILES)
    signals = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    own = {**RESOURCE_LIMITS, resource.RLIMIT_NOFILE: (most, most)}
    if signals != _NONE:
        own[resource.RLIMIT_SIGPENDING] = (min(own[resource.RLIMIT_SIGPENDING][1], signals // 2),) * 2
    for kind, wanted in own.items():
        try:
            resource.setrlimit(kind, wanted)
        except (ValueError, OSError):  # the hard limit is lower, and this process may not raise it
            most = resource.getrlimit(kind)[1]
            soft, hard = (most if value == _NONE else min(value, most) for value in wanted)
            with contextlib.suppress(ValueError, OSError):  # fs.nr_open is lower than the present hard limit
                resource.setrlimit(kind, (soft, hard))


def open_files() -> tuple[int, int]:
    """Return the soft and the hard limit of open files for a session."""
    soft, hard = RESOURCE_LIMITS[resource.RLIMIT_NOFILE]
    hard = min(hard, int(resource.getrlimit(resource.RLIMIT_NOFILE)[1] * _OPEN_FILES_SHARE))
    return min(soft, hard), hard


def limit_processes(most: int) -> None:
    """Limit the number of processes of each user in this process's user namespace, except the host's root."""
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def open_terminal(rows: int, cols: int, uid: int) -> None:
    """Open a new terminal in the session's own devpts. The master becomes MASTER_FD, which must be free; the slave,
    owned by `uid`, becomes 0, 1 and 2. Raises OSError, with ENOTTY if the session has replaced its devpts.
    """
    with MountPlace("/").opened_fd() as root, beneath.opened(root, _MASTERS, os.O_RDWR | os.O_NOCTTY) as master:
        ptys.check_master(master)
        ptys.unlock_slave(master)
        ptys.set_size(master, rows, cols)
        slave = ptys.open_slave(master)
        os.dup2(master, 0)  # not yet to MASTER_FD, which is the descriptor of `root` until the block ends
    os.dup2(0, MASTER_FD)
    if abilities.own().owners:
        os.fchown(slave, uid, TERMINALS_GROUP)
    for fd in (0, 1, 2):
        os.dup2(slave, fd)
    os.close(slave)


def take_on(identity: Identity, cwd: list[str], seccomp: Seccomp) -> int:
    """Become `identity`, with the system call filter `seccomp`, in the first folder of `cwd` that can be entered.
    Return the index of that folder.

    Signal actions, the signal mask and the umask are reset. If no folder can be entered, the OSError is that of the
    last folder.
    """
    namespaces.limit_capabilities(KEPT_CAPABILITIES)
    refused.put_up(seccomp)  # while still root of the user namespace: other users would need no_new_privs for a filter
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python ignores some of them, and exec would keep them ignored
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if abilities.own().groups:
        os.setgroups(identity.groups)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
    for place, folder in enumerate(cwd[:-1]):
        with contextlib.suppress(OSError):
            os.chdir(folder)
            return place
    os.chdir(cwd[-1])
    return len(cwd) - 1


def execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Execute `argv` with a session's limit of open files; `env` is the whole environment. Raises OSError."""
    resource.setrlimit(resource.RLIMIT_NOFILE, open_files())
    os.execve(argv[0], argv, env)
    sys.exit(1)
