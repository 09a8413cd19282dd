"""Namespaces, user id maps, capabilities, keyrings: calls by which a process prepares itself to run in a session.

Sources: unshare(2), setns(2), user_namespaces(7), capabilities(7), keyrings(7), time_namespaces(7).
"""

import ctypes
import os
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from waypoint.linux.calls import libc

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
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2

SECBIT_NO_SETUID_FIXUP = 1 << 2

_SYS_RESOURCE = 1 << 24
_CAPABILITY_VERSION = 0x2008_0522  # _LINUX_CAPABILITY_VERSION_3
KEYCTL_JOIN_SESSION_KEYRING = 1
_NS_GET_USERNS = 0xB701  # linux/nsfs.h

EACH_ITSELF = "0 0 4294967295\n"
"""The map of a user namespace in which each id is itself, as model/records.py has it."""

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
    """Move the caller into new namespaces of the kinds in `flags`. CLONE_NEWPID, CLONE_NEWTIME: only its children."""
    libc.call("unshare", flags)


def unshare_user(owner: int) -> None:
    """Move the caller, who is root, into a new user namespace that the user `owner` of the present one owns. The caller
    has all capabilities in it, and no id yet.

    What the kernel counts for each user (inotify instances and watches, namespaces, locked memory), it also counts for
    the owner, for all users of the namespace together.
    """
    if owner:
        prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)  # else root would give up its capabilities; unshare ends it
        os.setresuid(owner, owner, owner)
    unshare(CLONE_NEWUSER)


def has_all_capabilities() -> bool:
    """Whether the caller has every capability that the kernel knows."""
    with open("/proc/self/status") as status, open("/proc/sys/kernel/cap_last_cap") as last:
        effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
        return effective == (1 << (int(last.read()) + 1)) - 1


def has_capabilities(wanted: int) -> bool:
    """Whether the caller has the capabilities of which `wanted` has the bits, but for CAP_SYS_RESOURCE, which the
    machine's own root lacks in many containers.
    """
    with open("/proc/self/status") as status:
        effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    return not wanted & ~effective & ~_SYS_RESOURCE


def setns(fd: int, flags: int) -> None:
    """Enter the namespaces `flags` of the process behind pidfd `fd` (Linux 5.8), or the namespace behind `fd`."""
    libc.call("setns", fd, flags)


def call_within(mounts_fd: int, work: Callable[[], T]) -> T:
    """Call `work` in the mount namespace `mounts_fd`, and return or raise what it does. The process stays where it is:
    a thread of its own enters the namespace, with a root and a current directory of its own, and ends.
    """
    from concurrent.futures import Future  # loads `threading`, which would slow every fork of the launcher
    from threading import Thread

    outcome: Future[T] = Future()

    def enter() -> None:
        try:
            unshare(CLONE_FS)  # setns(2) refuses a thread that shares its root with others
            setns(mounts_fd, CLONE_NEWNS)
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = Thread(target=enter)
    thread.start()
    thread.join()
    return outcome.result()


def is_in(pid: int, kind: str, namespace: int) -> bool:
    """Whether the process is in the namespace behind the descriptor, of the kind `kind` ("mnt"). Raises OSError."""
    return os.path.samestat(os.stat(f"/proc/{pid}/ns/{kind}"), os.fstat(namespace))


def open_own(kind: str) -> int:
    """A descriptor of the caller's namespace `kind` ("mnt"), close-on-exec. The namespace lasts as long as it does."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def map_ids(pid: int, lines: str) -> None:
    """Write the map of user ids, and the same of group ids, of the user namespace that process `pid` has just created.
    If each id is to be itself, those are mapped that the caller's own namespace has.

    The caller needs CAP_SETUID and CAP_SETGID in the parent namespace. The kernel lets each map be written once.
    """
    for which in ("uid_map", "gid_map"):
        content = _own_ids(which) if lines == EACH_ITSELF else lines
        with open(f"/proc/{pid}/{which}", "w") as file:
            file.write(content)


def id_maps(pid: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The maps of user ids and of group ids of the process's user namespace, as `as_mapped` tells them: by the ids of
    the caller's.
    """
    found = []
    for which in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{which}") as file:
            found.append(_ranges(file.read()))
    return found[0], found[1]


def as_mapped(lines: str) -> list[tuple[int, ...]]:
    """What `id_maps` tells of each map after `map_ids` with these lines, which has to be the same for both."""
    return _ranges(_own_ids("uid_map") if lines == EACH_ITSELF else lines)


def _ranges(lines: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, line.split())) for line in lines.splitlines()]


def _own_ids(which: str) -> str:
    with open(f"/proc/self/{which}") as file:
        ranges = [line.split() for line in file]
    return "".join(f"{first} {first} {count}\n" for first, _outside, count in ranges)


def enter_own(former: int | None) -> None:
    """Go into a user namespace of this ordinary user's, with a mount namespace of its own. It has one id, the user's,
    which is the same outside: so every file, process and peer is whose it was. The process and the programs that it
    executes have all capabilities there. `former`: a descriptor of such a namespace that this user has made before; it
    is gone into, if the kernel lets that be.

    The caller has one thread. Raises OSError.
    """
    uid, gid = os.getuid(), os.getgid()
    if former is None or not _joined(former):
        unshare(CLONE_NEWUSER)
        # The kernel lets an ordinary user map a group only where nobody can give up groups, which may forbid things.
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1\n"), ("gid_map", f"{gid} {gid} 1\n")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(content)
    unshare(CLONE_NEWNS)
    _keep_capabilities()


def _joined(userns: int) -> bool:
    try:
        setns(userns, CLONE_NEWUSER)
    except OSError:
        return False
    return True


def _keep_capabilities() -> None:
    """Let the programs that this process executes have its capabilities, too, whatever user it is (capabilities(7))."""
    with open("/proc/self/status") as status:
        own = next(int(line.split()[1], 16) for line in status if line.startswith("CapPrm:"))
    low, high = own & 0xFFFF_FFFF, own >> 32
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    libc.call("capset", header, struct.pack("=6I", low, low, low, high, high, high))
    for number in range(own.bit_length()):
        if own >> number & 1:
            libc.call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0)


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

    The setting is the calling thread's, and is cleared when that changes its user (setfsuid(2), too), by fork(2), and
    by execve(2) of a set-uid program.
    """
    prctl(PR_SET_PDEATHSIG, signal_number)


def names(pid: int, kinds: Sequence[str]) -> list[str]:
    """What the kernel calls the namespaces `kinds` of process `pid`: the same for those who are in one."""
    return [os.readlink(path(pid, kind)) for kind in kinds]


def is_own(pid: int, kind: str) -> bool:
    """Whether the namespace `kind` of process `pid` belongs to its user namespace (ioctl_ns(2)). Raises OSError."""
    fd = os.open(path(pid, kind), os.O_RDONLY | os.O_CLOEXEC)
    try:
        owner = libc.call("ioctl", fd, _NS_GET_USERNS, 0)
    finally:
        os.close(fd)
    try:
        return os.path.samestat(os.fstat(owner), os.stat(path(pid, "user")))
    finally:
        os.close(owner)


def path(pid: int, kind: str) -> str:
    """The path of the namespace `kind` of process `pid`."""
    return f"/proc/{pid}/ns/{kind}"


def hide_from_peers() -> None:
    """Let nobody who has not this process's rights in the namespace of its program open its files, memory or program
    through /proc, or trace it, whatever user it becomes (PR_SET_DUMPABLE). Ends with its next execve.
    """
    prctl(PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Become the new parent of orphaned descendants, instead of the machine's pid 1 (PR_SET_CHILD_SUBREAPER)."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
