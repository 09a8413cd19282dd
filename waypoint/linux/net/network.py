"""The network namespace of the calling thread: loopback and settings (netdevice(7), ip-sysctl)."""

import fcntl
import os
import socket
import struct

from waypoint.linux.tasks import namespaces

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_SLOTS = 16384


def raise_loopback() -> None:
    """Bring the interface `lo` up; the kernel then gives it the addresses 127.0.0.1 and ::1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", request)[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def leads_out_by_ipv6() -> bool:
    """Whether this network namespace has a default route for IPv6."""
    try:
        with open("/proc/net/ipv6_route") as routes:
            lines = [line.split() for line in routes]
    except FileNotFoundError:
        return False
    return any(words[:2] == ["0" * 32, "00"] and words[-1] != "lo" for words in lines)


def write_setting(name: str, value: str) -> None:
    """Write `value` to `/proc/sys/net/<name>` of this network namespace."""
    with open(f"/proc/sys/net/{name}", "w") as file:
        file.write(value)


def raise_setting(name: str, least: int) -> None:
    """Have the number `/proc/sys/net/<name>` of this network namespace be no smaller than `least`."""
    with open(f"/proc/sys/net/{name}") as file:
        found = int(file.read())
    if found < least:
        write_setting(name, str(least))


def open_birthplace() -> int:
    """A descriptor of a network namespace in which others are to be made, which then have a table of TCP connections
    of their own, of _SLOTS slots (tcp_child_ehash_entries, Linux 6.1). Else all are in the machine's, and to list those
    of one namespace each slot is looked at: with 262,144 (24 GB of memory) for 2.5 ms, of which a dump has four times
    as much. -1 if the kernel gives none. The caller has one thread, and its children are reaped by nobody's waiting.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        if os.fork() == 0:
            try:
                namespaces.unshare(namespaces.CLONE_NEWNET)
                raise_loopback()  # by which CRIU finds out what the kernel has
                write_setting("ipv4/tcp_child_ehash_entries", str(_SLOTS))
                own = os.open(namespaces.path(os.getpid(), "net"), os.O_RDONLY | os.O_CLOEXEC)
                socket.send_fds(theirs, [b"."], [own])
            finally:
                os._exit(0)
        theirs.close()
        _, handles, _, _ = socket.recv_fds(ours, 1, 1)
        return handles[0] if handles else -1
