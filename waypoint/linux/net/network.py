"""Functions for the network namespace of the calling thread: loopback and settings (netdevice(7), ip-sysctl)."""

import contextlib
import fcntl
import socket
import struct

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def raise_loopback() -> None:
    """Bring the interface `lo` up; the kernel then gives it the addresses 127.0.0.1 and ::1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", request)[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def leads_out_by_ipv6() -> bool:
    """True if this network namespace has a default route for IPv6."""
    try:
        with open("/proc/net/ipv6_route") as routes:
            lines = [line.split() for line in routes]
    except FileNotFoundError:
        return False
    return any(words[:2] == ["0" * 32, "00"] and words[-1] != "lo" for words in lines)


def accept_any_address() -> None:
    """Let every program in this network namespace bind sockets to any address and port, with only loopback up."""
    raise_loopback()
    write_setting("ipv4/ip_nonlocal_bind", "1")
    write_setting("ipv4/ip_unprivileged_port_start", "0")
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        write_setting("ipv6/ip_nonlocal_bind", "1")


def write_setting(name: str, value: str) -> None:
    """Write `value` to `/proc/sys/net/<name>` of this network namespace."""
    with open(f"/proc/sys/net/{name}", "w") as file:
        file.write(value)


def first_unprivileged_port() -> int:
    """The lowest port of this network namespace that every user may bind."""
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as file:
        return int(file.read())
