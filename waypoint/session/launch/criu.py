"""How a CRIU starts where it has to be: beside a session for a dump, on the ground of a new one for a restore.

It talks over fd 3. What it restores are its children; when it ends they become the launcher's, which is their reaper.
"""

import contextlib
import os
from collections.abc import Callable

from waypoint.linux import mounts, namespaces, network, procfs
from waypoint.processes.criu_options import Notice, OnNotice
from waypoint.session.launch.birth import REPORT_FD, Answer, hand_over, supervise
from waypoint.session.launch.externals import mount_apart
from waypoint.session.launch.spec import CRIU_SOCKET_FD, CriuBeside, CriuInto
from waypoint.session.launch.start import furnish_network

_RUN = "/run"  # where CRIU keeps what it has found out about the kernel, if that is on a tmpfs
APART = "apart"
APART_SEEN = f"{_RUN}/{APART}"
"""Where CRIU finds the ground's mounts."""


def start_beside(spec: CriuBeside, fds: list[int]) -> Answer:
    """For a dump of the session with init `spec.pid`: in its network namespace, so that CRIU neither dumps that nor
    searches the host's connections. In a cgroup of its own: the session's will be frozen.
    """

    def prepare() -> None:
        # Killed while it runs a system call in a task of the session, it would take that along (docs/criu.md).
        with contextlib.suppress(PermissionError):  # without CAP_SYS_RESOURCE
            procfs.set_oom_score(-1000)
        session = os.pidfd_open(spec.pid)
        _make_private()
        mounts.bind(spec.run, _RUN)
        namespaces.setns(session, namespaces.CLONE_NEWNET)

    return _start(spec, fds, spec.cgroup, prepare)


def start_into(spec: CriuInto, fds: list[int]) -> Answer:
    """For a restore: in the new session's cgroup, with its mounts in reach, and no key of the host's."""

    def prepare() -> None:
        os.setsid()
        os.umask(0o022)
        _make_private()
        # Before /run is covered: the mounts are made of folders below it.
        mount_apart(spec.ground, f"{spec.run}/{APART}")
        mounts.bind(spec.run, _RUN, recursive=True)
        namespaces.join_new_session_keyring()

    return _start(spec, fds, spec.ground.cgroup, prepare)


def furnish() -> OnNotice:
    """For a restore with an empty network: what is in it, before anything of the session runs there."""
    root = 0

    def hear(notice: Notice) -> None:
        nonlocal root
        root = notice.pid or root
        if notice.stage == "post-setup-namespaces":
            network.work_in(root, furnish_network)

    return hear


def _start(spec: CriuBeside | CriuInto, fds: list[int], cgroup: str, prepare: Callable[[], None]) -> Answer:
    def outer(report: int, ask: int, answer: int) -> None:
        os.close(answer)
        prepare()
        os.write(ask, f"pid {os.getpid()}".encode())
        os.close(ask)
        _become(spec, fds, report)

    return supervise(outer, cgroup, is_last=True)


def _become(spec: CriuBeside | CriuInto, fds: list[int], report: int) -> None:
    os.dup2(report, REPORT_FD, inheritable=False)
    socket, words = (os.dup(fd) for fd in fds)
    os.dup2(socket, CRIU_SOCKET_FD)
    null = os.open("/dev/null", os.O_RDONLY)
    for fd, place in ((null, 0), (words, 1), (words, 2)):
        os.dup2(fd, place)
    os.closerange(CRIU_SOCKET_FD + 1, REPORT_FD)
    os.closerange(REPORT_FD + 1, 4096)
    hand_over([])
    os.execve(spec.argv[0], spec.argv, spec.env)


def _make_private() -> None:
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.make_slave("/")
