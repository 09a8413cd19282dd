"""Which system calls are refused to a session's processes: the list of refusals, and the filter that is made of it.

A layer behind the others. Most of these calls need rights that nobody in a session has; refused here, they do not even
reach the code that checks these rights, where the kernel's bugs are. In the spirit of Docker's default list, with its
answers: EPERM; and ENOSYS for clone3, whose flags a filter cannot see, so that a libc uses clone instead. Unlike there,
calls are listed that are refused, not those that are allowed; but a call that is newer than the list (`LAST`) does not
exist in a session (ENOSYS, by which programs know an older kernel).

What processes need of each other inside stays: ptrace and what asks for the same right (strace, gdb).
"""

import errno
import functools

from waypoint.launch.walls.call_numbers import ARM, ARM_OWN, AUDIT_NUMBERS, LAST, NUMBERS, ON_MACHINE
from waypoint.linux.calls import libc, seccomp
from waypoint.linux.calls.seccomp import ALLOW, Instructions, if_any_bit, if_one_of
from waypoint.model.records import Allowance, Seccomp

_EPERM, _ENOSYS = seccomp.refuse(errno.EPERM), seccomp.refuse(errno.ENOSYS)
_NO_FAMILY = seccomp.refuse(errno.EAFNOSUPPORT)

_NEW_NAMESPACES = 0x7C020000  # CLONE_NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWNS
# Refused whatever is allowed: who has a cgroup namespace of its own may mount cgroups. It begins where the session is:
# in its own group, the limits of which its root could lift, and in all hierarchies that the session has no group of, in
# the machine's root. Where the session's ids are the machine's, all of that is its root's to write to.
_NEW_CGROUP_NAMESPACE = 0x02000000
_NEW_TIME_NAMESPACE = 0x80  # for unshare alone: in clone's flags it is part of a signal's number
# AF_ALG, by which the kernel enciphers: such a socket cannot be captured. AF_VSOCK, by which a virtual machine talks
# with its host: it belongs to no network namespace.
_REFUSED_FAMILIES = (38, 40)
# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET. For others (TIPC, RDS, CAN, ...) the kernel would load a module,
# whoever asks. Refused, it is a family that this kernel does not have, for which programs are prepared.
_FAMILIES = (1, 2, 10, 16, 17)
_SOCKETCALL_SOCKET, _SOCKETCALL_SOCKETPAIR = 1, 8
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# ADDR_NO_RANDOMIZE (gdb, setarch -R), UNAME26, PER_LINUX32. Others make mappings executable, or map the first page.
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

_OF_FAMILIES = if_one_of(0, _REFUSED_FAMILIES, _EPERM, if_one_of(0, _FAMILIES, ALLOW, otherwise=_NO_FAMILY))

_IN_PART: dict[str, Instructions] = {
    "clone": if_any_bit(0, _NEW_CGROUP_NAMESPACE, _EPERM),
    "clone3": _ENOSYS,
    "ioctl": if_one_of(1, (_TIOCSTI, _TIOCLINUX), _EPERM),  # these two type input on a terminal from which others read
    "personality": if_any_bit(
        0, _ASK_PERSONALITY & ~_PERSONALITIES, if_one_of(0, (_ASK_PERSONALITY,), ALLOW, otherwise=_EPERM)
    ),
    "socket": _OF_FAMILIES,
    "socketpair": _OF_FAMILIES,
    # socketcall has the family in memory, where a filter cannot see it, so it makes no sockets at all. Programs can use
    # socket(2), since Linux 4.3.
    "socketcall": if_one_of(0, (_SOCKETCALL_SOCKET, _SOCKETCALL_SOCKETPAIR), _EPERM),
    "unshare": if_any_bit(0, _NEW_CGROUP_NAMESPACE, _EPERM),
}

_NAMESPACES_IN_PART: dict[str, Instructions] = {
    "clone": if_any_bit(0, _NEW_NAMESPACES | _NEW_CGROUP_NAMESPACE, _EPERM),
    "unshare": if_any_bit(0, _NEW_NAMESPACES | _NEW_CGROUP_NAMESPACE | _NEW_TIME_NAMESPACE, _EPERM),
}


def seccomp_for(allow: list[Allowance]) -> tuple[Seccomp, str]:
    """The filter of a new session to which `allow` is allowed. If there is none: why, in words."""
    why = seccomp.why_not()
    if why:
        return "none", why
    return ("userns" if "userns" in allow else "default"), ""


def put_up(kind: Seccomp) -> None:
    """Install the filter `kind` for this process and all that it becomes and creates. Raises OSError."""
    if kind != "none":
        seccomp.install(filter_program(kind))


def prepare() -> None:
    """Make all filters now, so that the processes that this one forks need not make them."""
    filter_program("default")
    filter_program("userns")


@functools.cache
def filter_program(kind: Seccomp, machine: str = libc.MACHINE) -> bytes:
    """The program of the filter `kind` on a machine of the architecture `machine`."""
    verdicts = {**dict.fromkeys(_ALWAYS.split(), _EPERM), **_IN_PART}
    if kind != "userns":
        verdicts |= {**dict.fromkeys(_OF_NAMESPACES.split(), _EPERM), **_NAMESPACES_IN_PART}
    return seccomp.assemble(
        {AUDIT_NUMBERS[architecture]: _by_number(architecture, verdicts) for architecture in ON_MACHINE[machine]},
        other=_ENOSYS,
    )


def _by_number(architecture: str, verdicts: dict[str, Instructions]) -> dict[int, Instructions]:
    """The verdicts on the architecture's calls, each by the first number that it is for."""
    numbers = NUMBERS[architecture]
    refused = {numbers[name]: verdict for name, verdict in verdicts.items() if name in numbers}
    others = {number + 1: ALLOW for number in refused}
    ends = {0: ALLOW, LAST + 1: _ENOSYS, seccomp.SKIPPED: ALLOW}
    if architecture == ARM:
        ends |= {ARM_OWN.start: ALLOW, ARM_OWN.stop: _ENOSYS}
    return _merged({**others, **ends, **refused})


def _merged(starts: dict[int, Instructions]) -> dict[int, Instructions]:
    """`starts` without the numbers at which the verdict does not change."""
    kept: dict[int, Instructions] = {}
    last: Instructions = ()
    for number in sorted(starts):
        if starts[number] != last:
            kept[number] = last = starts[number]
    return kept
