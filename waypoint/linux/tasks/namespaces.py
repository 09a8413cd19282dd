"""System calls for namespaces, user id maps, capabilities and keyrings, by which a process enters a session.

Sources: unshare(2), setns(2), user_namespaces(7), capabilities(7), keyrings(7), time_namespaces(7).
"""

import ctypes
import os
from collections.abc import Callable
from typing import TypeVar

from waypoint.linux.calls import abilities, libc

T = TypeVar("T")

CLONE_NEWTIME = 0x00000080
CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_NAME = 15
PR_SET_MEMORY_MERGE = 67  # Linux 6.4
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36

SECBIT_NO_SETUID_FIXUP = 1 << 2

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


def unshare(flags: int) -> None:
    """Move the caller into new namespaces of the kinds in `flags`. CLONE_NEWPID and CLONE_NEWTIME do not move the
    caller, but only its children.
    """
    libc.call("unshare", flags)


def unshare_user(owner: int) -> None:
    """Move the caller, which must be root, into a new user namespace. `owner`: the user that owns the new namespace.
    The caller has all capabilities in the new namespace, and no id yet.

    The kernel limits some resources for each user (inotify instances and watches, namespaces, locked memory). It counts
    the use by all users of the new namespace also for the owner.
    """
    if owner:
        # Keeps root's capabilities when the uid changes. The unshare below resets this.
        prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
        os.setresuid(owner, owner, owner)
    unshare(CLONE_NEWUSER)


def has_all_capabilities() -> bool:
    """Return True if the caller has every capability that the kernel knows."""
    with open("/proc/self/status") as status, open("/proc/sys/kernel/cap_last_cap") as last:
        effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
        return effective == (1 << (int(last.read()) + 1)) - 1


def setns(fd: int, flags: int) -> None:
    """Enter the namespace `fd`, or the namespaces `flags` of the process to which the pidfd `fd` refers (Linux 5.8)."""
    libc.call("setns", fd, flags)


def call_within(fd: int, work: Callable[[], T], kind: int = CLONE_NEWNS) -> T:
    """Call `work` in the namespace `fd` of the given kind, and return or raise what `work` does. Only a new thread
    enters the namespace; the process stays in its own.
    """
    from concurrent.futures import Future  # loads `threading`, which would slow every fork of the launcher
    from threading import Thread

    outcome: Future[T] = Future()

    def enter() -> None:
        try:
            unshare(CLONE_FS)  # setns(2) refuses a thread that shares its root with others
            setns(fd, kind)
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = Thread(target=enter)
    thread.start()
    thread.join()
    return outcome.result()


def open_own(kind: str) -> int:
    """Return a descriptor of the caller's namespace `kind` ("mnt"), close-on-exec. The namespace exists at least as
    long as the descriptor is open.
    """
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def map_ids(pid: int, lines: str) -> None:
    """Write `lines` as the map of user ids and as the map of group ids of the user namespace that process `pid` has
    just created. `lines` "": the namespace gets the ids of the caller's namespace.

    The caller needs CAP_SETUID and CAP_SETGID in the parent namespace. The kernel lets each map be written once.
    """
    for which in ("uid_map", "gid_map"):
        content = lines or _same_ids(which)
        with open(f"/proc/{pid}/{which}", "w") as file:
            file.write(content)


def _same_ids(which: str) -> str:
    with open(f"/proc/self/{which}") as file:
        ranges = [line.split() for line in file]
    return "".join(f"{inside} {inside} {count}\n" for inside, _outside, count in ranges)


def become_root() -> None:
    """Become root of the user namespace, in which the caller has all capabilities. A namespace with only its user's id
    has no root: then the caller keeps its ids and capabilities.
    """
    if abilities.own().owners:
        os.setgid(0)
        os.setuid(0)


def merge_memory() -> None:
    """Let the kernel merge equal pages of this process and of its descendants with those of others that allow it (KSM).
    Programs that it executes inherit this from Linux 6.7 on. Raises OSError on kernels that cannot.
    """
    prctl(PR_SET_MEMORY_MERGE, 1)


def prctl(option: int, argument: int = 0) -> int:
    """Call prctl(2) and return its result."""
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
    """Replace the inherited session keyring by an empty keyring, since a process may use all keys in its keyring."""
    libc.syscall("keyctl", KEYCTL_JOIN_SESSION_KEYRING, None)


def set_process_name(name: str) -> None:
    """Set the calling thread's name, which `ps` shows in the column comm. The name is cut after 15 bytes."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    prctl(PR_SET_NAME, ctypes.addressof(buffer))


def set_death_signal(signal_number: int) -> None:
    """Let the kernel send `signal_number` to this process when the thread that created it ends (PR_SET_PDEATHSIG).

    The setting belongs to the calling thread. It is cleared when the thread changes its user (also by setfsuid(2)), by
    fork(2), and by execve(2) of a set-uid program.
    """
    prctl(PR_SET_PDEATHSIG, signal_number)


def path(pid: int, kind: str) -> str:
    """Return the path in /proc of the namespace `kind` of process `pid`."""
    return f"/proc/{pid}/ns/{kind}"


def hide_from_peers() -> None:
    """Keep other processes from tracing this process, and from opening its files and memory through /proc, even after
    it has changed its user (PR_SET_DUMPABLE). Ends with the next execve. Root of the user namespace in which the
    process executed its program is not restricted.
    """
    prctl(PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Make the caller, instead of the machine's pid 1, the new parent of its orphaned descendants
    (PR_SET_CHILD_SUBREAPER).
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
