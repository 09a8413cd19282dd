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

# The resource limits of every process of a session, soft and hard (getrlimit(2)), whoever has started the daemon: those
# of a login on a machine with systemd, with two exceptions. More open files, since few programs raise their own limit.
# And half of the message queues: the kernel counts these, and pending signals (`set_resource_limits`), for the owner of
# the session's user namespace, too, who may be root, so the other half is left to root.
_NONE = resource.RLIM_INFINITY
# No file, and no program of the machine's either that the kernel would run as the machine's root and hand the process
# to (core(5)): 0 does not stop that, 1 does (fs/coredump.c).
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
# descriptors that are in flight in Unix sockets by user id, and all sessions of a home have the same ids; it refuses to
# send another one when the count is above the sender's soft limit. Since the launcher and CRIU have a higher limit than
# any session, no session can keep them from sending descriptors.
_OPEN_FILES_SHARE = 0.75
_MOST_OPEN_FILES = 1 << 20  # the kernel's default; systemd allows 1,000 times as many, and programs make tables of them


def set_resource_limits() -> None:
    """Give this process RESOURCE_LIMITS, as far as it may raise its limits (CAP_SYS_RESOURCE). Its open files get the
    highest limit that there is; `execute` sets a session's. Of its own limit of pending signals it keeps half.
    """
    most = min(hard_limits.most_open_files(), _MOST_OPEN_FILES)
    signals = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    own = {**RESOURCE_LIMITS, resource.RLIMIT_NOFILE: (most, most)}
    if signals != _NONE:
        own[resource.RLIMIT_SIGPENDING] = (min(own[resource.RLIMIT_SIGPENDING][1], signals // 2),) * 2
    for kind, wanted in own.items():
        try:
            resource.setrlimit(kind, wanted)
        except (ValueError, OSError):  # the hard limit is lower, and may not be raised
            most = resource.getrlimit(kind)[1]
            soft, hard = (most if value == _NONE else min(value, most) for value in wanted)
            with contextlib.suppress(ValueError, OSError):  # fs.nr_open is lower than the present hard limit
                resource.setrlimit(kind, (soft, hard))


def open_files() -> tuple[int, int]:
    """The soft and the hard limit of open files of a session that this process starts."""
    soft, hard = RESOURCE_LIMITS[resource.RLIMIT_NOFILE]
    hard = min(hard, int(resource.getrlimit(resource.RLIMIT_NOFILE)[1] * _OPEN_FILES_SHARE))
    return min(soft, hard), hard


def limit_processes(most: int) -> None:
    """Let each user of this process's user namespace have so many processes, if the user is not the host's root."""
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def open_terminal(rows: int, cols: int, uid: int) -> None:
    """Open a new terminal in the session's own devpts: the master as MASTER_FD, which must be free, the slave, which
    `uid` owns, as 0, 1 and 2. Raises OSError, ENOTTY if the session has put something else in the place of its devpts.
    """
    with MountPlace("/").opened_fd() as root, beneath.opened(root, _MASTERS, os.O_RDWR | os.O_NOCTTY) as master:
        ptys.check_master(master)
        ptys.unlock_slave(master)
        ptys.set_size(master, rows, cols)
        slave = ptys.open_slave(master)
        os.dup2(master, 0)  # for now: the root has taken the number that the master is to have
    os.dup2(0, MASTER_FD)
    os.fchown(slave, uid, 5)
    for fd in (0, 1, 2):
        os.dup2(slave, fd)
    os.close(slave)


def take_on(identity: Identity, cwd: list[str], seccomp: Seccomp) -> int:
    """Go on as `identity` behind the filter `seccomp`, in the first folder of `cwd` that can be entered; returns which
    that is. Signal actions, the signal mask and the umask are set to their defaults. Raises OSError, of the last folder
    if none can be entered.
    """
    namespaces.limit_capabilities(KEPT_CAPABILITIES)
    refused.put_up(seccomp)  # while this is still the root of the user namespace, who needs no no_new_privs for it
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python ignores or catches some; exec would hand that on
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
