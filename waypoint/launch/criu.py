"""Turn a task of the launcher into a CRIU process.

For a dump CRIU runs outside the session. For a restore it runs in the new session's cgroup, with the session's mounts.
The launcher has already forked the task into the right cgroup. CRIU communicates with the daemon over fd 3. The
processes that CRIU restores are its children; when CRIU ends, the launcher becomes their reaper.
"""

import contextlib
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import NoReturn

import msgspec

from waypoint.launch.externals import mount_apart
from waypoint.launch.packets import answer, failure, receive
from waypoint.launch.spec import (
    CRIU_SOCKET_FD,
    CriuAhead,
    CriuBeside,
    CriuInto,
    CriuTemplate,
    LaunchAnswer,
    MountOrder,
)
from waypoint.linux.calls import hard_limits
from waypoint.linux.net import network
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import cgroups, namespaces, procfs
from waypoint.linux.tasks.clone import wait_entered

_OWN_FDS = 2  # CRIU's socket and its output file; the descriptors for the session's ids follow them
_TMP = "/tmp"
_RUN = "/run"  # CRIU caches the kernel's features there, if it is a tmpfs
APART = "apart"
APART_SEEN = f"{_RUN}/{APART}"
"""The folder, as CRIU sees it, that contains the session's mounts from outside (externals.py)."""
_HIGH_FD = 64  # above the descriptors that CRIU gets
_NICE = -15  # priority of a CRIU for which somebody waits: its session is frozen, or it reads memory for a restore

_TEMPLATE_S = 30.0  # how long a template may take to fork: it copies the page tables of its memory
_PID = struct.Struct("=i")
_ORDERS = msgspec.json.Decoder(MountOrder)  # made in the launcher: making it takes a task 0.4 ms

Announce = Callable[[int], None]
"""Called with the pid of the process, just before execve."""


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
    if spec.is_urgent:
        _hurry()
    session = os.pidfd_open(spec.pid)
    _make_private()
    mounts.bind(spec.run, _RUN)
    namespaces.setns(session, namespaces.CLONE_NEWNET)
    _become(_found(spec), spec, fds, announce)


def become_template(spec: CriuTemplate, fds: list[int], announce: Announce) -> NoReturn:
    """Become a template (templates.py). Its children have its limits, its keyring excepted. It ends with the launcher,
    which the children need as their parent. An error before execve raises OSError.
    """
    namespaces.set_death_signal(signal.SIGKILL)
    os.umask(0o022)
    procfs.set_oom_score(1000)  # nothing is lost with it
    _hurry()  # a restore waits for it; `_fork_from_template` gives the restored processes their own priority
    hard_limits.raise_own(spec.hard_limits)
    _make_private()
    mounts.bind(spec.run, _RUN)
    _become(_found(spec), spec, fds, announce)


def become_into(spec: CriuInto, fds: list[int], announce: Announce) -> NoReturn:
    """Become a CRIU that restores a session, with the session's mounts in `APART_SEEN` and a new session keyring. With
    a template, have the template fork that CRIU, and end. An error before execve raises OSError.
    """
    own_fds = _OWN_FDS + spec.from_template
    os.setsid()
    os.umask(0o022)
    hard_limits.raise_own(spec.hard_limits)
    _make_private()
    if spec.no_host_network and spec.mounts.net == "host":
        namespaces.unshare(namespaces.CLONE_NEWNET)
        network.accept_any_address()
    # This comes before the bind over /run, because the sources of these mounts are folders below /run.
    mount_apart(spec.mounts, fds[own_fds:], f"{spec.run}/{APART}")
    mounts.bind(spec.run, _RUN, recursive=True)
    namespaces.join_new_session_keyring()
    wait_entered()
    program = _found(spec)
    if spec.from_template and (worker := _fork_from_template(spec, fds)):
        # A worker that was killed has read no request from CRIU's socket yet, so this process replaces it.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            procfs.set_oom_score(procfs.oom_score(), worker)  # the template's is another
            os.setpriority(os.PRIO_PROCESS, worker, os.getpriority(os.PRIO_PROCESS, 0))
            for group in cgroups.twins(spec.mounts.cgroup):
                cgroups.write(group, "cgroup.procs", str(worker))
            announce(worker)
            os._exit(0)
    _become(program, spec, fds[:_OWN_FDS], announce)


def _fork_from_template(spec: CriuInto, fds: list[int]) -> int:
    """Have the template fork a CRIU into the cgroup and the namespaces of this process. Return its pid, or 0 if the
    template has ended or failed. Raises TimeoutError.
    """
    ours, theirs = socket.socketpair()
    ours.settimeout(_TEMPLATE_S)
    kept = [os.open(namespaces.path(os.getpid(), kind), os.O_RDONLY) for kind in ("mnt", "net")]
    group = os.open(spec.mounts.cgroup, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(fileno=os.dup(fds[_OWN_FDS])) as template:
        try:
            socket.send_fds(template, [b"+"], [*fds[:_OWN_FDS], *kept, group, theirs.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            return 0
    theirs.close()
    said = ours.recv(_PID.size)
    return int(_PID.unpack(said)[0]) if said else 0


def stand_by(spec: CriuAhead, fds: list[int], announce: Announce) -> None:
    """Start CRIU as a child, and `announce` it. Then make the mounts of the session in CRIU's mount namespace when the
    daemon sends a MountOrder. CRIU has a mount namespace of its own, because the sources of these mounts are folders
    below /run, which are hidden there. An error before `announce` raises OSError.
    """
    os.setsid()
    os.umask(0o022)
    _make_private()
    namespaces.join_new_session_keyring()
    own = namespaces.open_own("mnt")
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.bind(spec.run, _RUN)
    program = _found(spec)  # hides the mounts below /tmp, where the home may be, from CRIU only
    criu_mounts = namespaces.open_own("mnt")
    wait_entered()
    criu = _spawn(program, spec, fds[:_OWN_FDS])
    announce(criu)
    for fd in fds[:_OWN_FDS]:
        os.close(fd)  # so that CRIU alone has its socket
    namespaces.setns(own, namespaces.CLONE_NEWNS)
    with socket.socket(fileno=fds[_OWN_FDS]) as orders:
        request, users = receive(orders)
        if not request:  # the daemon has ended, or starts no session
            return
        try:
            order = _ORDERS.decode(request)
            hard_limits.raise_for(criu, order.hard_limits)
            mount_apart(order.mounts, users, f"{spec.run}/{APART}")
            names = [f"m{number}" for number in range(len(order.mounts.outside))]
            made = [(mounts.clone(f"{spec.run}/{APART}/{name}"), name) for name in names]
            namespaces.setns(criu_mounts, namespaces.CLONE_NEWNS)
            for mount, name in made:
                mounts.attach(mount, f"{APART_SEEN}/{name}")
        except BaseException as error:  # any error: the daemon waits for an answer
            answer(orders.fileno(), failure(error), [])
        else:
            answer(orders.fileno(), LaunchAnswer(pid=criu), [])


def _spawn(program: str, spec: CriuAhead, fds: list[int]) -> int:
    """Start CRIU as a child without copying this process. `fds`: CRIU's socket, and its stdout and stderr."""
    above = CRIU_SOCKET_FD + 1
    sock, output = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in fds)
    null = fcntl.fcntl(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), fcntl.F_DUPFD_CLOEXEC, above)
    actions = [(os.POSIX_SPAWN_DUP2, fd, place) for fd, place in ((null, 0), (output, 1), (output, 2))]
    actions.append((os.POSIX_SPAWN_DUP2, sock, CRIU_SOCKET_FD))
    pid = os.posix_spawn(program, spec.argv, spec.env, file_actions=actions)
    for fd in (sock, output, null):
        os.close(fd)
    return pid


def _found(spec: CriuBeside | CriuInto | CriuTemplate | CriuAhead) -> str:
    """Return the path of CRIU's program, and protect /tmp from it.

    CRIU makes folders in /tmp, some of them as the session's root, and leaves them if it is killed. So its writes to
    /tmp go to a separate layer. Reads still reach the host's /tmp, which may contain CRIU's program and libraries.
    """
    program = os.path.realpath(spec.argv[0], strict=True)  # raises now, while the failure can still be reported
    mounts.keep_writes_apart(_TMP, needed=program)
    return program


def _become(program: str, spec: CriuBeside | CriuInto | CriuTemplate, fds: list[int], announce: Announce) -> NoReturn:
    """`fds`: CRIU's socket, its output, and those that become the descriptors after its socket."""
    announce(os.getpid())
    null = os.open("/dev/null", os.O_RDONLY)
    control, output, *more = (fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH_FD) for fd in fds)
    for place, fd in enumerate((null, output, output, control, *more)):
        os.dup2(fd, place)
    os.closerange(CRIU_SOCKET_FD + 1 + len(more), 4096)
    try:
        os.execve(program, spec.argv, spec.env)
    except OSError as error:
        os.write(2, f"{spec.argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _hurry() -> None:
    """Take the priority _NICE. Where the kernel divides the processors between sessions of processes
    (sched_autogroup_enabled), this needs a session of its own.
    """
    with contextlib.suppress(OSError):  # without CAP_SYS_NICE
        os.nice(_NICE)
        os.setsid()
        procfs.set_session_nice(_NICE)


def _make_private() -> None:
    namespaces.unshare(namespaces.CLONE_NEWNS)
    mounts.make_slave("/")
