"""Forking straight into a control group (clone3(2), CLONE_INTO_CGROUP, Linux 5.7).

Moving a running process into a group makes the kernel wait for an RCU grace period under `cgroup_threadgroup_rwsem`:
8 to 28 ms were measured. Creating the process in the group has no such cost, but there is no such way into groups of
the version 1 hierarchies.
"""

import contextlib
import ctypes
import errno
import os
import signal
import struct

from waypoint.linux.calls import libc
from waypoint.linux.tasks import cgroups

_CLONE_INTO_CGROUP = 0x200000000
_REFUGE = "waypoint-launcher-"
_ENTERED = b"."
_CLONE_ARGS = struct.Struct("=11Q")

_gates: list[tuple[int, int]] = []
"""Of this process, while it is on its way into groups: who moves it there, and a pipe that tells when that is done."""

# PyDLL, unlike CDLL, keeps the GIL during the call: the forked child would hang in taking it back.
_python = ctypes.PyDLL(None, use_errno=True)


def fork_into(group: str) -> int:
    """os.fork() whose child starts as a member of the cgroup2 group at `group`. The caller must have one thread.

    Raises OSError, ENOENT if there is no such group. On kernels without clone3, the child moves itself into the group.
    The child is on its way into the group's twins (`cgroups.twins`), which clone3 does not know: before it forks or
    executes anything, it waits for that (`wait_entered`).
    """
    fd = os.open(group, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        pid = _clone(_CLONE_ARGS.pack(_CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, fd))
    except OSError as error:
        # No clone3, a seccomp filter that refuses it, a kernel without the field `cgroup`.
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
    """Wait until this process, a child of `fork_into`, is in all groups."""
    while _gates:
        helper, gate = _gates.pop()
        said = os.read(gate, 512)
        os.close(gate)
        with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored
            os.waitpid(helper, 0)
        if said != _ENTERED:
            raise OSError(0, said.decode(errors="replace") or "a limit of the session cannot be set")


def _enter_beside(groups: list[str]) -> None:
    """Have a process of its own move the caller, which has other things to do meanwhile, into version 1 groups."""
    _gates.clear()  # of the caller's parent
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
    """Move the caller to a new group below its own one, if that was killed once (cgroup.kill), by whomever.

    `fork_into` works only from groups that were killed as often as the child's group was (`cgroups.end`). The caller
    must have one thread, and not ignore SIGCHLD. Where no group can be made, the caller stays where it is. The new
    group stays when its last process has ended; a later call from the same group removes it.
    """
    with contextlib.suppress(OSError):
        root = cgroups.find_hierarchies().unified
        own = cgroups.own_group(root)
        if own == root:  # the root group cannot be killed
            return
        for name in cgroups.children(own):
            if name.startswith(_REFUGE):
                with contextlib.suppress(OSError):  # EBUSY: in use
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
            with contextlib.suppress(OSError):  # EBUSY: entered
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
