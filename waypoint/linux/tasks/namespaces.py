"""Namespaces, user id maps, capabilities, keyrings: calls by which a process prepares itself to run in a session.

Sources: unshare(2), setns(2), user_namespaces(7), capabilities(7), keyrings(7), time_namespaces(7).
"""

import ctypes
import os

from waypoint.linux.calls import libc

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

KEYCTL_JOIN_SESSION_KEYRING = 1

# From linux/capability.h.
CAPABILITIES = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "fsetid": 4,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "setpcap": 8,
    "net_bind_service": 10,
    "net_raw": 13,
    "sys_chroot": 18,
    "audit_write": 29,
    "setfcap": 31,
}

WHOLE_RANGE = "0 0 4294967295"


def unshare(flags: int) -> None:
    """Move the caller into new namespaces of the kinds in `flags`. CLONE_NEWPID, CLONE_NEWTIME: only its children."""
    libc.call("unshare", flags)


def setns(fd: int, flags: int) -> None:
    """Enter the namespaces `flags` of the process behind pidfd `fd` (Linux 5.8), or the namespace behind `fd`."""
    libc.call("setns", fd, flags)


def open_own(kind: str) -> int:
    """A descriptor of the caller's namespace `kind` ("mnt"), close-on-exec. The namespace lasts as long as it does."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def map_identity(pid: int) -> None:
    """Map every user and group id to itself in the user namespace that process `pid` has just created.

    The caller needs CAP_SETUID and CAP_SETGID in the parent namespace. The kernel lets each map be written once.
    """
    for which in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{which}", "w") as file:
            file.write(WHOLE_RANGE)


def prctl(option: int, argument: int = 0) -> int:
    """Call prctl(2) and return its result. Raises OSError."""
    return libc.call("prctl", option, argument, 0, 0, 0)


def limit_capabilities(keep: frozenset[int]) -> None:
    """Drop every capability that is not in `keep` from the bounding set of this process and its future children.

    The process's own permitted capabilities shrink at its next execve or change of uid.
    """
    number = 0
    while number < 64:
        try:
            present = prctl(PR_CAPBSET_READ, number)
        except OSError:  # EINVAL: `number` is above the last capability that this kernel knows
            return
        if present and number not in keep:
            prctl(PR_CAPBSET_DROP, number)
        number += 1


def join_new_session_keyring() -> None:
    """Replace the inherited session keyring by an empty one. Whoever has a keyring may use the keys in it."""
    libc.syscall("keyctl", KEYCTL_JOIN_SESSION_KEYRING, None)


def set_process_name(name: str) -> None:
    """Set the calling thread's name, which `ps` shows in its comm column; cut after 15 bytes."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    prctl(PR_SET_NAME, ctypes.addressof(buffer))


def set_death_signal(signal_number: int) -> None:
    """Let the kernel send `signal_number` to this process when the thread that created it ends (PR_SET_PDEATHSIG).

    The setting is cleared by fork(2) and by execve(2) of a set-uid program.
    """
    prctl(PR_SET_PDEATHSIG, signal_number)


def namespace_inode(pid: int, kind: str) -> int:
    """Inode number of the namespace `kind` ("net", "pid") of process `pid`: equal numbers mean the same namespace."""
    return os.stat(f"/proc/{pid}/ns/{kind}").st_ino


def become_subreaper() -> None:
    """Become the new parent of orphaned descendants, instead of the machine's pid 1 (PR_SET_CHILD_SUBREAPER)."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
