"""The system calls that are refused in a session, and the seccomp filter made of this list.

Most of these calls need capabilities that no process of a session has. The filter refuses them nevertheless, so that
bugs in the kernel's code for these calls cannot be used. The list is similar to Docker's default, with the same errors:
EPERM, but ENOSYS for clone3, so that libc uses clone instead (a filter cannot see the flags of clone3). Unlike
Docker's, the list contains the refused calls, not the allowed ones. Calls that are newer than the list (`LAST`) fail
with ENOSYS, as on an older kernel.

ptrace and calls that require the same right are allowed (strace, gdb).
"""

import errno
import functools

from waypoint.launch.walls.call_numbers import ARM, ARM_OWN, AUDIT_NUMBERS, LAST, NUMBERS, ON_MACHINE
from waypoint.linux.calls import libc, seccomp
from waypoint.linux.calls.seccomp import ALLOW, Instructions, if_any_bit, if_one_of
from waypoint.model.records import Allowance, Seccomp

_EPERM, _ENOSYS = seccomp.refuse(errno.EPERM), seccomp.refuse(errno.ENOSYS)
_EINVAL = seccomp.refuse(errno.EINVAL)
_NO_FAMILY = seccomp.refuse(errno.EAFNOSUPPORT)
_NO_TYPE, _NO_PROTOCOL = seccomp.refuse(errno.ESOCKTNOSUPPORT), seccomp.refuse(errno.EPROTONOSUPPORT)
_NO_MEMORY = seccomp.refuse(errno.ENOMEM)

_NEW_NAMESPACES = 0x7C020000  # CLONE_NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWNS
# Refused for every session, because a process in its own cgroup namespace may mount cgroups. The mount shows the
# session's cgroup, whose limits the session's root could raise; in a hierarchy in which the session has no cgroup, it
# shows the whole hierarchy. If the session's ids are the host's, its root could write to all of that.
_NEW_CGROUP_NAMESPACE = 0x02000000
_NEW_TIME_NAMESPACE = 0x80  # only for unshare: in the flags of clone this bit is part of the signal number
# AF_ALG (the kernel's cryptography), because CRIU cannot dump such sockets. AF_VSOCK (between a virtual machine and its
# host), because network namespaces do not confine it.
_REFUSED_FAMILIES = (38, 40)
# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET. For others (TIPC, RDS, CAN, ...) the kernel would load a module for
# any user. They fail with the error for a family that the kernel does not have, which programs can handle.
_FAMILIES = (1, 2, 10, 16, 17)
_INTERNET = (2, 10)  # AF_INET, AF_INET6
_RARE_TYPES = 4  # the bit of SOCK_RDM, SOCK_SEQPACKET, SOCK_DCCP
# DCCP, L2TP, SCTP, SMC: the kernel would load their modules for any user.
_RARE_PROTOCOLS = (33, 115, 132, 256)
# Reserved huge pages belong to the program for which the machine's root has reserved them. Programs handle the error:
# it is that of a machine without such pages.
_MAP_HUGETLB, _MFD_HUGETLB, _SHM_HUGETLB = 0x40000, 0x4, 0o4000
# The flags that memfd_create does not have. Chromium asks for all flags, and ends if the error is not EINVAL.
_MFD_UNKNOWN = 0xFFFFFFFF & ~(0x1F | 0x3F << 26)
_SOCKETCALL_SOCKET, _SOCKETCALL_SOCKETPAIR = 1, 8
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# Leases and delegations: whoever opens such a file waits up to 45 s for its holder (/proc/sys/fs/lease-break-time). A
# capture would wait for a frozen session, and programs of the machine for a session that has bound their file. EINVAL
# is the kernel's error for a file system without leases.
_F_SETLEASE, _F_SETDELEG = 1024, 1040
# The allowed personalities: ADDR_NO_RANDOMIZE (gdb, setarch -R), UNAME26, PER_LINUX32. Others make mappings executable
# or map the first page.
_PERSONALITIES = 0x0040000 | 0x0020000 | 0x0008
_ASK_PERSONALITY = 0xFFFFFFFF

_ALWAYS = """
acct add_key bpf clock_settime clock_settime64 create_module delete_module fanotify_init finit_module get_kernel_syms
get_mempolicy init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kexec_file_load kexec_load keyctl
lookup_dcookie mbind migrate_pages move_pages nfsservctl open_by_handle_at perf_event_open query_module quotactl
quotactl_fd reboot request_key set_mempolicy set_mempolicy_home_node settimeofday stime swapoff swapon _sysctl sysfs
syslog uselib userfaultfd ustat vhangup vm86 vm86old
"""

_OF_NAMESPACES = """
fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree open_tree_attr pivot_root setdomainname
sethostname setns umount umount2
"""

_NO_LEASES = if_one_of(1, (_F_SETLEASE, _F_SETDELEG), _EINVAL)
_OF_INTERNET = if_any_bit(1, _RARE_TYPES, _NO_TYPE, if_one_of(2, _RARE_PROTOCOLS, _NO_PROTOCOL))
_OF_FAMILIES = if_one_of(
    0,
    _REFUSED_FAMILIES,
    _EPERM,
    if_one_of(0, _INTERNET, _OF_INTERNET, if_one_of(0, _FAMILIES, ALLOW, otherwise=_NO_FAMILY)),
)

_IN_PART: dict[str, Instructions] = {
    "clone": if_any_bit(0, _NEW_CGROUP_NAMESPACE, _EPERM),
    "clone3": _ENOSYS,
    "fcntl": _NO_LEASES,
    "fcntl64": _NO_LEASES,
    "memfd_create": if_any_bit(1, _MFD_HUGETLB, if_any_bit(1, _MFD_UNKNOWN, _EINVAL, otherwise=_NO_MEMORY)),
    "mmap": if_any_bit(3, _MAP_HUGETLB, _NO_MEMORY),
    "mmap2": if_any_bit(3, _MAP_HUGETLB, _NO_MEMORY),
    "shmget": if_any_bit(2, _SHM_HUGETLB, _NO_MEMORY),
    "ioctl": if_one_of(1, (_TIOCSTI, _TIOCLINUX), _EPERM),  # these two insert input into a terminal
    "personality": if_any_bit(
        0, _ASK_PERSONALITY & ~_PERSONALITIES, if_one_of(0, (_ASK_PERSONALITY,), ALLOW, otherwise=_EPERM)
    ),
    "socket": _OF_FAMILIES,
    "socketpair": _OF_FAMILIES,
    # A filter cannot see the family, which socketcall reads from memory, so sockets cannot be made by socketcall.
    # Programs can use socket(2) instead, on i386 since Linux 4.3.
    "socketcall": if_one_of(0, (_SOCKETCALL_SOCKET, _SOCKETCALL_SOCKETPAIR), _EPERM),
    "unshare": if_any_bit(0, _NEW_CGROUP_NAMESPACE, _EPERM),
}

_NAMESPACES_IN_PART: dict[str, Instructions] = {
    "clone": if_any_bit(0, _NEW_NAMESPACES | _NEW_CGROUP_NAMESPACE, _EPERM),
    "unshare": if_any_bit(0, _NEW_NAMESPACES | _NEW_CGROUP_NAMESPACE | _NEW_TIME_NAMESPACE, _EPERM),
}


def seccomp_for(allow: list[Allowance]) -> tuple[Seccomp, str]:
    """Return the kind of filter for a new session, and the reason if it can have none, else "". `allow`: the values of
    `--allow`.
    """
    why = seccomp.why_not()
    if why:
        return "none", why
    return ("userns" if "userns" in allow else "default"), ""


def put_up(kind: Seccomp) -> None:
    """Install the filter `kind` for this process and its descendants. Raises OSError."""
    if kind != "none":
        seccomp.install(filter_program(kind))


def prepare() -> None:
    """Assemble all filters now, so that the forked processes find them in the cache."""
    filter_program("default")
    filter_program("userns")


@functools.cache
def filter_program(kind: Seccomp, machine: str = libc.MACHINE) -> bytes:
    """Return the BPF program of the filter `kind` for a machine of the architecture `machine`."""
    verdicts = {**dict.fromkeys(_ALWAYS.split(), _EPERM), **_IN_PART}
    if kind != "userns":
        verdicts |= {**dict.fromkeys(_OF_NAMESPACES.split(), _EPERM), **_NAMESPACES_IN_PART}
    return seccomp.assemble(
        {AUDIT_NUMBERS[architecture]: _by_number(architecture, verdicts) for architecture in ON_MACHINE[machine]},
        other=_ENOSYS,
    )


def _by_number(architecture: str, verdicts: dict[str, Instructions]) -> dict[int, Instructions]:
    """Return the verdict on each range of the architecture's system call numbers, by the first number of the range."""
    numbers = NUMBERS[architecture]
    refused = {numbers[name]: verdict for name, verdict in verdicts.items() if name in numbers}
    others = {number + 1: ALLOW for number in refused}
    ends = {0: ALLOW, LAST + 1: _ENOSYS, seccomp.SKIPPED: ALLOW}
    if architecture == ARM:
        ends |= {ARM_OWN.start: ALLOW, ARM_OWN.stop: _ENOSYS}
    return _merged({**others, **ends, **refused})


def _merged(starts: dict[int, Instructions]) -> dict[int, Instructions]:
    """Return `starts` with adjacent ranges of the same verdict merged."""
    kept: dict[int, Instructions] = {}
    last: Instructions = ()
    for number in sorted(starts):
        if starts[number] != last:
            kept[number] = last = starts[number]
    return kept
