"""How a task of the launcher becomes a CRIU where that has to be: beside a session for a dump, on the ground of a new
one for a restore.

It was born in the cgroup. It talks over fd 3. What it restores are its children; when it ends they become the
launcher's, which is their reaper.
"""

import contextlib
import os
from collections.abc import Callable
from typing import NoReturn

from waypoint.linux import mounts, namespaces, procfs
from waypoint.session.launch.externals import mount_apart
from waypoint.session.launch.spec import CRIU_SOCKET_FD, CriuBeside, CriuInto

_TMP = "/tmp"
_RUN = "/run"  # where CRIU keeps what it has found out about the kernel, if that is on a tmpfs
APART = "apart"
APART_SEEN = f"{_RUN}/{APART}"
"""Where CRIU finds the ground's mounts."""


Here = Callable[[list[int]], None]
"""Told, with a descriptor of the process, when only the exec is left."""


def become_beside(spec: CriuBeside, fds: list[int], here: Here) -> NoReturn:
    """For a dump of the session with init `spec.pid`: in its network namespace, so that CRIU neither dumps that nor
    searches the host's connections. In a cgroup of its own: the session's will be frozen. Raises OSError.
    """
    # Killed while it runs a system call in a task of the session, it would take that along (docs/criu.md).
    with contextlib.suppress(PermissionError):  # without CAP_SYS_RESOURCE
        procfs.set_oom_score(-1000)
    session = os.pidfd_open(spec.pid)
    _make_private()
    mounts.bind(spec.run, _RUN)
    namespaces.setns(session, namespaces.CLONE_NEWNET)
    _become(spec, fds, here)


def become_into(spec: CriuInto, fds: list[int], here: Here) -> NoReturn:
    """For a restore: in the new session's cgroup, with its mounts in reach, no key of the host's. Raises OSError."""
    os.setsid()
    os.umask(0o022)
    _make_private()
    # Before /run is covered: the mounts are made of folders below it.
    mount_apart(spec.ground, f"{spec.run}/{APART}")
    mounts.bind(spec.run, _RUN, recursive=True)
    namespaces.join_new_session_keyring()
    _become(spec, fds, here)


def _become(spec: CriuBeside | CriuInto, fds: list[int], here: Here) -> NoReturn:
    program = os.path.realpath(spec.argv[0], strict=True)  # while it can be told that it is not there
    if not program.startswith(f"{_TMP}/"):  # where CRIU makes folders; one that is killed leaves them
        mounts.mount("tmpfs", _TMP, "tmpfs", 0, "mode=0700")
    here([os.pidfd_open(os.getpid())])
    socket, words = (os.dup(fd) for fd in fds)
    null = os.open("/dev/null", os.O_RDONLY)
    for fd, place in ((null, 0), (words, 1), (words, 2), (socket, CRIU_SOCKET_FD)):
        os.dup2(fd, place)
    os.set_inheritable(CRIU_SOCKET_FD, True)  # noqa: FBT003 - also if it was there already
    os.closerange(CRIU_SOCKET_FD + 1, 4096)
    try:
        os.execve(program, spec.argv, spec.env)
    except OSError as error:
        os.write(2, f"{spec.argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _make_private() -> None:
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.make_slave("/")
