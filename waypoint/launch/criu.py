"""Turn a task of the launcher into a CRIU process.

For a dump CRIU runs outside the session. For a restore it runs in the new session's cgroup, with the session's mounts.
The launcher has already forked the task into the right cgroup. CRIU communicates with the daemon over fd 3. The
processes that CRIU restores are its children; when CRIU ends, the launcher becomes their reaper.
"""

import contextlib
import os
from collections.abc import Callable
from typing import NoReturn

from waypoint.launch.externals import mount_apart
from waypoint.launch.spec import CRIU_SOCKET_FD, CriuBeside, CriuInto
from waypoint.linux.calls import hard_limits
from waypoint.linux.net import network
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import namespaces, procfs
from waypoint.linux.tasks.clone import wait_entered

_OWN_FDS = 2  # CRIU's socket and its output file; the descriptors for the session's ids follow them
_TMP = "/tmp"
_RUN = "/run"  # CRIU caches the kernel's features there, if it is a tmpfs
APART = "apart"
APART_SEEN = f"{_RUN}/{APART}"
"""The folder, as CRIU sees it, that contains the session's mounts from outside (externals.py)."""
_NICE = -15  # priority of a CRIU that dumps, because the session is frozen during the dump

Announce = Callable[[list[int]], None]
"""Called just before execve, with a pidfd of the process."""


def become_beside(spec: CriuBeside, fds: list[int], announce: Announce) -> NoReturn:
    """Become a CRIU that dumps the session with init `spec.pid`. An error before execve raises OSError.

    CRIU joins the session's network namespace, so that it does not dump the namespace and does not search the host's
    connections. It runs in a cgroup of its own, because the session's cgroup will be frozen.
    """
    os.umask(0o077)  # the images have the memory of programs
    # Protect CRIU from the OOM killer: CRIU runs code of its own in the session's tasks. If CRIU is killed meanwhile,
    # such a task may end, too (docs/criu.md).
    with contextlib.suppress(PermissionError):  # without CAP_SYS_RESOURCE
        procfs.set_oom_score(-1000)
    with contextlib.suppress(PermissionError):  # without CAP_SYS_NICE
        os.nice(_NICE)
    session = os.pidfd_open(spec.pid)
    _make_private()
    mounts.bind(spec.run, _RUN)
    namespaces.setns(session, namespaces.CLONE_NEWNET)
    _become(spec, fds, announce)


def become_into(spec: CriuInto, fds: list[int], announce: Announce) -> NoReturn:
    """Become a CRIU that restores a session, with the session's mounts in `APART_SEEN` and a new session keyring.
    An error before execve raises OSError.
    """
    os.setsid()
    os.umask(0o022)
    hard_limits.raise_own(spec.hard_limits)
    _make_private()
    if spec.no_host_network and spec.mounts.net == "host":
        namespaces.unshare(namespaces.CLONE_NEWNET)
        network.accept_any_address()
    # This comes before the bind over /run, because the sources of these mounts are folders below /run.
    mount_apart(spec.mounts, fds[_OWN_FDS:], f"{spec.run}/{APART}")
    mounts.bind(spec.run, _RUN, recursive=True)
    namespaces.join_new_session_keyring()
    wait_entered()
    _become(spec, fds[:_OWN_FDS], announce)


def _become(spec: CriuBeside | CriuInto, fds: list[int], announce: Announce) -> NoReturn:
    program = os.path.realpath(spec.argv[0], strict=True)  # raises now, while the failure can still be reported
    # CRIU makes folders in /tmp, some of them as the session's root, and leaves them if it is killed. So its writes to
    # /tmp go to a separate layer. Reads still reach the host's /tmp, which may contain CRIU's program and libraries.
    mounts.keep_writes_apart(_TMP, needed=program)
    announce([os.pidfd_open(os.getpid())])
    socket, output = (os.dup(fd) for fd in fds)
    null = os.open("/dev/null", os.O_RDONLY)
    for fd, place in ((null, 0), (output, 1), (output, 2), (socket, CRIU_SOCKET_FD)):
        os.dup2(fd, place)
    os.set_inheritable(CRIU_SOCKET_FD, True)  # noqa: FBT003 - dup2 onto itself would leave close-on-exec set
    os.closerange(CRIU_SOCKET_FD + 1, 4096)
    try:
        os.execve(program, spec.argv, spec.env)
    except OSError as error:
        os.write(2, f"{spec.argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _make_private() -> None:
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.make_slave("/")
