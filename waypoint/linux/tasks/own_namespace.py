"""Entering the user namespace in which the daemon of an ordinary user runs.

The namespace has one user and one group, those of its user. The daemon keeps its user and has all capabilities in it,
as ambient capabilities, so that the programs that it starts have them, too (capabilities(7)). The sessions' namespaces
are below it, so a later daemon has to enter the same one: another namespace of the user has no rights over them, and
cannot see which locks they hold.

Sources: user_namespaces(7), ioctl_ns(2), capget(2).
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterable

from waypoint.linux.calls import libc
from waypoint.linux.tasks import namespaces

_NS_GET_PARENT = 0xB702
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
_CAPABILITY_VERSION = 0x20080522
_HEADER = struct.Struct("=Ii")
_SETS = struct.Struct("=6I")  # effective, permitted, inheritable; each of the lower and then of the upper 32
_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces is 0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone is 0"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor allows it to some programs only"),
)


def enter(running: Iterable[int]) -> None:
    """Move the caller, which must have only one thread, into its user's namespace and into a new mount namespace.
    `running`: pids of the home's supervisor and daemon and of processes of its sessions; the namespace of the first
    that runs is entered. Raises OSError, with the reason if the machine does not allow such namespaces.
    """
    uid, gid = os.getuid(), os.getgid()
    present = _present(running)
    try:
        if present >= 0:
            namespaces.setns(present, namespaces.CLONE_NEWUSER)
            os.close(present)
            namespaces.unshare(namespaces.CLONE_NEWNS)
        else:
            namespaces.unshare(namespaces.CLONE_NEWUSER | namespaces.CLONE_NEWNS)
            for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(content)
        _keep_capabilities()
        # The kernel hides a process that has got capabilities; another supervisor could not see which locks it holds.
        namespaces.prctl(namespaces.PR_SET_DUMPABLE, 1)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}{_why_off()}", error.filename) from error


def _present(running: Iterable[int]) -> int:
    """A descriptor of the user namespace, directly below the caller's, of one of these processes; -1: there is none."""
    own = os.stat("/proc/self/ns/user").st_ino
    for pid in running:
        with contextlib.suppress(OSError):  # the process has ended; it is another user's
            here = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            while os.fstat(here).st_ino != own:
                try:
                    above = fcntl.ioctl(here, _NS_GET_PARENT)
                except OSError:
                    os.close(here)
                    raise
                if os.fstat(above).st_ino == own:
                    os.close(above)
                    return here
                os.close(here)
                here = above
            os.close(here)
    return -1


def _keep_capabilities() -> None:
    """Give the capabilities of the caller to all programs that it executes."""
    header = _HEADER.pack(_CAPABILITY_VERSION, 0)
    sets = ctypes.create_string_buffer(_SETS.size)
    libc.call("capget", header, ctypes.addressof(sets))
    low, permitted, _, high, permitted_high, _ = _SETS.unpack(sets.raw)
    content = _SETS.pack(low, permitted, permitted, high, permitted_high, permitted_high)
    libc.call("capset", header, content)
    for number in range(64):
        if (permitted | permitted_high << 32) >> number & 1:
            libc.call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0)


def drop_capabilities() -> None:
    """Drop all capabilities of the caller, also for the programs that it executes."""
    libc.call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    libc.call("capset", _HEADER.pack(_CAPABILITY_VERSION, 0), bytes(_SETS.size))


def _why_off() -> str:
    """Which setting of the machine forbids user namespaces to ordinary users, in words after a colon; "" if none."""
    for path, value, said in _SWITCHES:
        with contextlib.suppress(OSError), open(path) as file:
            if file.read().strip() == value:
                return f": {said}"
    return ""


def is_refusal(error: OSError) -> bool:
    """Whether the machine refuses user namespaces to ordinary users."""
    return error.errno in (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EINVAL, errno.ENOSYS)
