"""Forks a process directly into a control group (clone3(2), CLONE_INTO_CGROUP, Linux 5.7).

When a running process is moved into a group, the kernel waits for an RCU grace period under `cgroup_threadgroup_rwsem`;
8 to 28 ms were measured. Creating the process in the group takes no such time, but is not possible for groups of the
version 1 hierarchies.
"""

import contextlib
import ctypes
import errno
import os
import signal
import struct

from waypoint.linux.calls import libc
from waypoint.linux.tasks import cgroups, process_groups

_CLONE_INTO_CGROUP = 0x200000000
_REFUGE = "waypoint-launcher-"
_ENTERED = b"."
_CLONE_ARGS = struct.Struct("=11Q")

_gates: list[tuple[int, int]] = []
"""While another process moves this process into groups: the pid of that process, and a pipe on which it reports the
result.
"""

# PyDLL, unlike CDLL, keeps the GIL during the call. With CDLL, the forked child would wait for the GIL forever.
_python = ctypes.PyDLL(None, use_errno=True)


def fork_into(group: str) -> int:
    """Fork like os.fork(), with a child that starts as a member of the cgroup2 group at `group`. The caller must have
    only one thread.

    Raises OSError, with ENOENT if there is no such group. On kernels without clone3, the child moves itself into the
    group. clone3 does not support the version 1 groups (`cgroups.twins`), so another process moves the child into
    these. The child must call `wait_entered` before it forks or executes a program.
    """
    if process_groups.is_one(group):
        pid = os.fork()
        if pid == 0:
            cgroups.enter(group)
        return pid
    fd = os.open(group, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        pid = _clone(_CLONE_ARGS.pack(_CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, fd))
    except OSError as error:
        # The kernel has no clone3, a seccomp filter refuses clone3, or the kernel does not know the field `cgroup`.
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.E2BIG):
            raise
        pid = os.fork()
        if pid == 0:
            cgroups.enter(group)
    finally:
        os.close(fd)
    if pid == 0:
        _enter_beside(cgroups.twins(group))
    return pid


def wait_entered() -> None:
    """Wait until this process, a child of `fork_into`, is in all its groups. Raises OSError if that failed."""
    while _gates:
        helper, gate = _gates.pop()
        said = os.read(gate, 512)
        os.close(gate)
        with contextlib.suppress(ChildProcessError):  # if SIGCHLD is ignored, the kernel reaps the helper
            os.waitpid(helper, 0)
        if said != _ENTERED:
            raise OSError(0, said.decode(errors="replace") or "a limit of the session cannot be set")


def _enter_beside(groups: list[str]) -> None:
    """Fork a process that moves the caller into the version 1 groups `groups`, while the caller continues."""
    _gates.clear()  # the list was inherited from the parent
    if not groups:
        return
    own = os.getpid()
    gate, opener = os.pipe()
    helper = os.fork()
    if helper:
        os.close(opener)
        _gates.append((helper, gate))
        return
    said = _ENTERED
    try:
        for group in groups:
            cgroups.write(group, "cgroup.procs", str(own))
    except BaseException as error:
        said = f"cannot enter {groups}: {error}".encode()
    os.write(opener, said)
    os._exit(0)


def leave_killed_group() -> None:
    """If the caller's group was ever killed (cgroup.kill), move the caller to a new group below that group.

    `fork_into` works only from a group that was killed as often as the child's group (see `cgroups.end`). The caller
    must have only one thread, and must not ignore SIGCHLD. If no group can be created, the caller stays in its group.
    The new group remains when its last process has ended; a later call from the same group removes it.
    """
    with contextlib.suppress(OSError):
        root = cgroups.find_hierarchies().unified
        own = cgroups.own_group(root)
        if own == root:  # the root group cannot be killed
            return
        for name in cgroups.children(own):
            if name.startswith(_REFUGE):
                with contextlib.suppress(OSError):  # EBUSY: the group is in use
                    cgroups.remove(f"{own}/{name}")
        group = f"{own}/{_REFUGE}{os.getpid()}"
        os.mkdir(group)
        try:
            child = fork_into(group)
            if child == 0:
                os._exit(0)
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL:
                cgroups.enter(group)
        finally:
            with contextlib.suppress(OSError):  # EBUSY: the caller has entered the group
                cgroups.remove(group)


def _clone(arguments: bytes) -> int:
    """Call clone3(2) between the steps that os.fork() takes around fork(2) (PyOS_BeforeFork, PyOS_AfterFork_*)."""
    _python.PyOS_BeforeFork()
    pid: int = _python.syscall(ctypes.c_long(libc.SYSCALLS["clone3"]), arguments, ctypes.c_long(len(arguments)))
    if pid == 0:
        _python.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    _python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, f"clone3: {os.strerror(number)}")
    return pid
