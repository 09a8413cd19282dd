"""Namespaces, user id maps, capabilities and keyrings: what a process does to itself on its way into a session.

Sources: unshare(2), setns(2), user_namespaces(7), capabilities(7), keyrings(7), time_namespaces(7).
"""

import ctypes
import os

from waypoint.linux import libc

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

# capability.h: the numbers are the kernel's ABI.
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
    """Leave the namespaces in `flags` for new ones. CLONE_NEWPID and CLONE_NEWTIME take effect for children."""
    libc.call("unshare", flags)


def setns(fd: int, flags: int) -> None:
    """Enter the namespaces `flags` of the process behind pidfd `fd` (Linux 5.8), or the one namespace that `fd` is."""
    libc.call("setns", fd, flags)


def map_identity(pid: int) -> None:
    """Give process `pid`, which has just unshared its user namespace, an identity map of all ids.

    The writer needs CAP_SETUID and CAP_SETGID in the parent namespace; each map can be written once.
    """
    for which in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{which}", "w") as file:
            file.write(WHOLE_RANGE)


def prctl(option: int, argument: int = 0) -> int:
    return libc.call("prctl", option, argument, 0, 0, 0)


def limit_capabilities(keep: frozenset[int]) -> None:
    """Drop every capability outside `keep` from the bounding set, for this process and all that it will start.

    What the process holds itself goes at its next execve or change of uid.
    """
    number = 0
    while number < 64:
        try:
            present = prctl(PR_CAPBSET_READ, number)
        except OSError:  # EINVAL: beyond the last capability that this kernel knows
            return
        if present and number not in keep:
            prctl(PR_CAPBSET_DROP, number)
        number += 1


def join_new_session_keyring() -> None:
    """Take an empty session keyring instead of the inherited one, which holds its owner's keys by possession."""
    libc.syscall("keyctl", KEYCTL_JOIN_SESSION_KEYRING, None)


def set_process_name(name: str) -> None:
    """The name that `ps` shows in its comm column; at most 15 bytes."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    prctl(PR_SET_NAME, ctypes.addressof(buffer))


def set_death_signal(signal_number: int) -> None:
    """Have the kernel send `signal_number` when the parent thread ends; cleared by fork and by set-uid execve."""
    prctl(PR_SET_PDEATHSIG, signal_number)


def namespace_inode(pid: int, kind: str) -> int:
    """Inode number of a namespace: equal numbers mean the same namespace."""
    return os.stat(f"/proc/{pid}/ns/{kind}").st_ino


def become_subreaper() -> None:
    """Orphaned descendants become children of this process instead of the machine's pid 1 (PR_SET_CHILD_SUBREAPER)."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
