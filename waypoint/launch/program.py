"""The last steps of every process that starts in a session: open its terminal, give up rights, execute its program."""

import contextlib
import os
import resource
import signal
import sys
from typing import NoReturn

from waypoint.launch.spec import Identity
from waypoint.launch.walls import refused
from waypoint.linux.calls import hard_limits
from waypoint.linux.storage import beneath
from waypoint.linux.storage.beneath import MountPlace
from waypoint.linux.tasks import namespaces
from waypoint.linux.tty import ptys
from waypoint.model.records import Seccomp

_MASTERS = "dev/pts/ptmx"
MASTER_FD = 3  # the descriptor at which pid 1 keeps the master side of the terminal

# Docker's default set without mknod: enough for package managers, su and servers, nothing over the host's kernel.
KEPT_CAPABILITIES = frozenset(namespaces.CAPABILITIES.values())

# The soft and hard resource limits of every process of a session (getrlimit(2)), independent of the user who started
# the daemon: those of a login on a machine with systemd, with two exceptions. More open files, since few programs raise
# their own limit. And half of the message queues: the kernel counts these, and pending signals (`set_resource_limits`),
# also for the owner of the session's user namespace, who may be root and needs the other half.
_NONE = resource.RLIM_INFINITY
# Disables core dumps to files, and also to a program of the host, which the kernel would run as root (core(5)). 0 would
# not disable the latter (fs/coredump.c).
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
# descriptors in flight in Unix sockets by user id, the same for all sessions of a home, and refuses to send one if the
# count exceeds the sender's soft limit. The launcher and CRIU have a higher limit, so no session can prevent them from
# sending.
_OPEN_FILES_SHARE = 0.75
_MOST_OPEN_FILES = 1 << 20  # the kernel's default; systemd allows 1,000 times as many, and programs make tables of them


def set_resource_limits() -> None:
    """Give this process RESOURCE_LIMITS, as far as it may raise its limits (CAP_SYS_RESOURCE). It gets the highest
    limit of open files (`execute` sets that of a session), and half of its own limit of pending signals.
    """
    most = min(hard_limits.most_open_files(), _MOST_OPEN_FILES)
    signals = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    own = {**RESOURCE_LIMITS, resource.RLIMIT_NOFILE: (most, most)}
    if signals != _NONE:
        own[resource.RLIMIT_SIGPENDING] = (min(own[resource.RLIMIT_SIGPENDING][1], signals // 2),) * 2
    for kind, wanted in own.items():
        try:
            resource.setrlimit(kind, wanted)
        except (ValueError, OSError):  # the hard limit is lower, and must not be raised
            most = resource.getrlimit(kind)[1]
            soft, hard = (most if value == _NONE else min(value, most) for value in wanted)
            with contextlib.suppress(ValueError, OSError):  # fs.nr_open is lower than the present hard limit
                resource.setrlimit(kind, (soft, hard))


def open_files() -> tuple[int, int]:
    """The soft and the hard limit of open files for a session."""
    soft, hard = RESOURCE_LIMITS[resource.RLIMIT_NOFILE]
    hard = min(hard, int(resource.getrlimit(resource.RLIMIT_NOFILE)[1] * _OPEN_FILES_SHARE))
    return min(soft, hard), hard


def limit_processes(most: int) -> None:
    """Limit the processes of each user of this process's user namespace except the host's root."""
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def open_terminal(rows: int, cols: int, uid: int) -> None:
    """Open a new terminal in the session's own devpts: the master as MASTER_FD, which must be free, the slave, owned by
    `uid`, as 0, 1 and 2. Raises OSError: ENOTTY if the session has replaced its devpts.
    """
    with MountPlace("/").opened_fd() as root, beneath.opened(root, _MASTERS, os.O_RDWR | os.O_NOCTTY) as master:
        ptys.check_master(master)
        ptys.unlock_slave(master)
        ptys.set_size(master, rows, cols)
        slave = ptys.open_slave(master)
        os.dup2(master, 0)  # for now: MASTER_FD is the descriptor of `root`
    os.dup2(0, MASTER_FD)
    os.fchown(slave, uid, 5)
    for fd in (0, 1, 2):
        os.dup2(slave, fd)
    os.close(slave)


def take_on(identity: Identity, cwd: list[str], seccomp: Seccomp) -> int:
    """Become `identity` with the filter `seccomp`, in the first folder of `cwd` that can be entered; returns its index.
    Resets signal actions, the signal mask and the umask. Raises OSError: for the last folder if none can be entered.
    """
    namespaces.limit_capabilities(KEPT_CAPABILITIES)
    refused.put_up(seccomp)  # as root of the user namespace, which needs no no_new_privs for it
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python ignores or catches some, which exec would pass on
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
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
