"""Sockets: their options, connections, and what waits in them."""

import array
import ctypes
import os
import select
import signal
import socket
import struct
import tempfile
from collections.abc import Generator
from typing import Any

from tests.differences.objects import LIBC, LOOPBACK, attempt, child, connection, datagrams, kept, reported


@kept
def unread_tcp() -> Generator[None, None, Any]:
    client, server = connection()
    client.sendall(b"unread")
    yield
    server.sendall(b"answer")
    return server.recv(9), client.recv(9)


@kept
def options_of_udp() -> Generator[None, None, Any]:
    """Options that CRIU leaves out, by level and number."""
    made = datagrams()
    options = {(1, 29): 1, (1, 40): 1, (1, 42): 0, (0, 10): 2, (0, 11): 1, (0, 12): 1, (0, 13): 1, (17, 103): 500}
    for (level, number), value in options.items():
        made.setsockopt(level, number, value)
    yield
    return [made.getsockopt(level, number) for level, number in options]


@kept
def options_of_udp6() -> Generator[None, None, Any]:
    made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    options = {(41, 16): 5, (41, 18): 6, (41, 25): 1, (41, 51): 1, (41, 66): 1, (41, 67): 8, (41, 72): 2}
    for (level, number), value in options.items():
        made.setsockopt(level, number, value)
    yield
    return [made.getsockopt(level, number) for level, number in options]


@kept
def options_of_tcp() -> Generator[None, None, Any]:
    client, server = connection()
    options = {(6, 7): 3, (6, 8): 11, (6, 18): 4321, (6, 25): 9999, (6, 36): 1, (1, 60): 1, (0, 21): 3}
    for one in (client, server):
        for (level, number), value in options.items():
            one.setsockopt(level, number, value)
    yield
    return [[one.getsockopt(level, number) for level, number in options] for one in (client, server)]


@kept
def options_of_listener() -> Generator[None, None, Any]:
    made = socket.create_server((LOOPBACK, 0))
    made.setsockopt(6, 9, 10)
    made.setsockopt(6, 23, 7)
    made.setsockopt(6, 27, 1)
    yield
    return [made.getsockopt(6, number) for number in (9, 23, 27)]


@kept
def peeked_at() -> Generator[None, None, Any]:
    here, there = socket.socketpair()
    there.setsockopt(socket.SOL_SOCKET, 42, 0)
    here.send(b"abcdef")
    there.recv(3, socket.MSG_PEEK)
    yield
    return there.recv(3, socket.MSG_PEEK), there.recv(2), there.recv(9)


@kept
def multicast_groups() -> Generator[None, None, Any]:
    """A member of three groups: of IPv4, of one sender only, and of IPv6."""
    first, second = datagrams(), datagrams()
    lo, group = socket.inet_aton(LOOPBACK), socket.inet_aton("239.1.2.3")
    first.setsockopt(0, socket.IP_ADD_MEMBERSHIP, group + lo)
    second.setsockopt(0, 39, group + lo + socket.inet_aton("127.0.0.9"))  # IP_ADD_SOURCE_MEMBERSHIP
    third = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    member = socket.inet_pton(socket.AF_INET6, "ff01::1234") + struct.pack("I", 1)
    third.setsockopt(41, socket.IPV6_JOIN_GROUP, member)
    yield
    buffer = ctypes.create_string_buffer(group + lo + struct.pack("II", 0, 9), 64)  # struct ip_msfilter
    LIBC.getsockopt(second.fileno(), 0, 41, buffer, ctypes.byref(ctypes.c_uint32(64)))
    return (
        attempt(lambda: first.setsockopt(0, socket.IP_DROP_MEMBERSHIP, group + lo)),
        attempt(lambda: third.setsockopt(41, socket.IPV6_LEAVE_GROUP, member)),
        buffer.raw[8:20].hex(),
    )


@kept
def unix_messages() -> Generator[None, None, Any]:
    """Unread messages with a descriptor on its way."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    os.write(writer, b"in the pipe")
    here.sendmsg([b"one"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [reader]))])
    here.send(b"two")
    os.close(reader)
    yield
    message, descriptors, _, _ = socket.recv_fds(there, 9, 1)
    return message, os.read(descriptors[0], 99), there.recv(9)


@reported("pending-error")
def refused_connection() -> Generator[None, None, Any]:
    made = socket.socket()
    made.settimeout(0)
    made.connect_ex((LOOPBACK, 9))
    yield
    return made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


@reported("pending-error")
def reset_connection() -> Generator[None, None, Any]:
    client, server = connection()
    server.send(b"unread")
    select.select([client], [], [], 60)
    client.close()
    yield
    return attempt(lambda: server.recv(9))


@reported("urgent-data")
def urgent_data() -> Generator[None, None, Any]:
    client, server = connection()
    client.send(b"before")
    client.send(b"U", socket.MSG_OOB)
    client.send(b"after")
    yield
    return server.recv(6)


@reported("datagram-sender")
def nameless_sender() -> Generator[None, None, Any]:
    receiver, sender = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    receiver.bind("\0receiver")
    sender.bind("\0sender")
    sender.sendto(b"question", "\0receiver")
    yield
    return receiver.recv(9)


def options(made: socket.socket, *numbers: tuple[int, int]) -> list[object]:
    return [attempt(lambda at=at: made.getsockopt(*at)) for at in numbers]  # type: ignore[misc]


@kept
def usual_options() -> Generator[None, None, Any]:
    """Options that CRIU keeps."""
    made = datagrams()
    values = {2: 1, 5: 1, 6: 1, 7: 5000, 8: 6000, 9: 1, 10: 1, 12: 4, 15: 1, 18: 3}
    for number, value in values.items():
        made.setsockopt(1, number, value)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 7))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 7, 0))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("qq", 8, 0))
    attempt(lambda: made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0"))
    yield
    wide = [made.getsockopt(1, number, 16) for number in (13, 20, 21, 25)]
    return options(made, *((1, number) for number in values)), wide


@kept
def socket_filter() -> Generator[None, None, Any]:
    """A filter that lets nothing in."""
    made, sender = datagrams(), datagrams()
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    made.setsockopt(1, 26, struct.pack("HxxxxxxP", 1, ctypes.addressof(program)))
    made.settimeout(0)
    yield
    sender.sendto(b"x", made.getsockname())
    return attempt(lambda: made.recv(9))


@kept
def unconnected_tcp() -> Generator[None, None, Any]:
    """Options of a socket that does not listen and is not connected: largest segment, window, IP options."""
    made = socket.socket()
    made.bind((LOOPBACK, 0))
    values = {(6, 1): 1, (6, 2): 777, (6, 4): 33, (6, 5): 44, (6, 6): 5, (6, 10): 4321}
    for at, value in values.items():
        made.setsockopt(*at, value)
    yield
    return options(made, *values)


@kept
def segments_of_listener() -> Generator[None, None, Any]:
    made = socket.create_server((LOOPBACK, 0))
    made.setsockopt(6, 2, 777)
    made.setsockopt(6, 10, 4321)
    yield
    client = socket.create_connection(made.getsockname())
    return options(made, (6, 2), (6, 10)), made.accept()[0].getsockopt(6, 2), client.fileno() > 0


@kept
def largest_segment() -> Generator[None, None, Any]:
    """Of a connection."""
    listener = socket.create_server((LOOPBACK, 0))
    client = socket.socket()
    client.setsockopt(6, 2, 777)
    client.connect(listener.getsockname())
    server = listener.accept()[0]
    yield
    return options(client, (6, 2)), options(server, (6, 2))


@kept
def ip_options() -> Generator[None, None, Any]:
    """IP_OPTIONS: a timestamp; and extension headers of IPv6."""
    made, client, six = datagrams(), connection()[0], socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    text = bytes([68, 12, 5, 0]) + bytes(8)
    made.setsockopt(0, 4, text)
    client.setsockopt(0, 4, bytes([1, 1, 1, 0]))
    attempt(lambda: six.setsockopt(41, 59, bytes([0, 0, 1, 4, 0, 0, 0, 0])))
    yield
    return made.getsockopt(0, 4, 40), client.getsockopt(0, 4, 40), attempt(lambda: six.getsockopt(41, 59, 40))


@kept
def half_closed() -> Generator[None, None, Any]:
    client, server = connection()
    client.sendall(b"last"), client.shutdown(socket.SHUT_WR)
    yield
    found = server.recv(9), server.recv(9)
    server.sendall(b"answer")
    return found, client.recv(9)


@kept
def ended_connection() -> Generator[None, None, Any]:
    """Closed by the other end, with unread data."""
    client, server = connection()
    client.sendall(b"last")
    client.close()
    select.select([server], [], [], 60)
    yield
    return server.recv(9), server.recv(9)


@kept
def unsent_tcp() -> Generator[None, None, Any]:
    """Data that TCP_CORK holds back, and more than the other end has room for."""
    (corked, first), (full, second) = connection(), connection()
    corked.setsockopt(6, 3, 1)
    corked.send(b"held back")
    full.settimeout(0)
    sent = 0
    while isinstance(more := attempt(lambda: full.send(b"x" * 65536)), int):
        sent += more
    yield
    corked.setsockopt(6, 3, 0)
    while sent > 0:
        sent -= len(second.recv(1 << 20))
    return first.recv(99), sent


@kept
def connection6() -> Generator[None, None, Any]:
    client, server = connection(socket.AF_INET6)
    client.sendall(b"unread")
    yield
    server.sendall(b"answer")
    return server.recv(9), client.recv(9), client.getpeername() == server.getsockname()


@kept
def mapped_connection() -> Generator[None, None, Any]:
    """An IPv4 client of an IPv6 listener."""
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    client = socket.create_connection((LOOPBACK, listener.getsockname()[1]))
    server = listener.accept()[0]
    client.sendall(b"unread")
    yield
    return server.recv(9), server.getpeername()[0], listener.getsockopt(41, 26)


@kept
def listener() -> Generator[None, None, Any]:
    made = socket.create_server((LOOPBACK, 0), backlog=3, reuse_port=True)
    other = socket.create_server(made.getsockname(), backlog=3, reuse_port=True)
    yield
    clients = [socket.create_connection(made.getsockname()) for _ in range(2)]
    ready, _, _ = select.select([made, other], [], [], 60)
    return len(clients), bool(ready), made.getsockopt(1, 30)


@kept
def connected_udp() -> Generator[None, None, Any]:
    one, other = datagrams(), datagrams()
    one.connect(other.getsockname()), other.connect(one.getsockname())
    yield
    one.send(b"message")
    return other.recv(9), other.getpeername() == one.getsockname()


@reported("pending-error")
def refused_datagram() -> Generator[None, None, Any]:
    made = socket.socket(type=socket.SOCK_DGRAM)
    made.connect((LOOPBACK, 9))
    made.send(b"x")
    select.select([made], [], [], 60)
    yield
    return made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


@kept
def connecting() -> Generator[None, None, Any]:
    """A socket that may be closed at once, since nothing answers its connection."""
    made = socket.socket()
    made.bind((LOOPBACK, 0))
    made.connect(made.getsockname())  # to itself
    made.send(b"own")
    yield
    return made.recv(9)


@kept
def raw_sockets() -> Generator[None, None, Any]:
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    raw.setsockopt(1, 1, 0)
    raw.setsockopt(0, 3, 1)
    raw.setsockopt(255, 1, struct.pack("I", 0xFF))  # ICMP_FILTER
    packet = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    packet.bind(("lo", 0x0800))
    yield
    return raw.getsockopt(0, 3), raw.getsockopt(255, 1, 4), packet.getsockname()[:2]


@kept
def routing_socket() -> Generator[None, None, Any]:
    """A netlink socket that hears of addresses."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    made.bind((0, 0x10))
    made.setsockopt(270, 11, 1)
    yield
    return made.getsockname()[1], made.getsockopt(270, 11)


@kept
def unix_listener() -> Generator[None, None, Any]:
    """With a path that was removed, and with an abstract name."""
    made = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    path = f"{tempfile.mkdtemp()}/socket"
    for one, name in zip(made, (path, "\0object", f"{path}.gone"), strict=True):
        one.bind(name)
        one.listen(2)
    waiting = socket.socket(socket.AF_UNIX)
    os.unlink(f"{path}.gone")
    yield
    found = []
    for one in made[:2]:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(one.getsockname())
            client.send(b"x")
            found.append(one.accept()[0].recv(9))
    return found, os.path.exists(f"{path}.gone"), made[2].getsockname() == f"{path}.gone", waiting.fileno() > 0


@kept
def unix_options() -> Generator[None, None, Any]:
    here, there = socket.socketpair()
    here.setsockopt(1, 16, 1)
    here.setsockopt(1, 8, 5000)
    here.setsockopt(1, 20, struct.pack("qq", 3, 0))
    there.shutdown(socket.SHUT_WR)
    yield
    return here.getsockopt(1, 16), here.getsockopt(1, 8), here.getsockopt(1, 20, 16), here.recv(1), here.send(b"x")


@kept
def unix_stream() -> Generator[None, None, Any]:
    """Unread data in both directions, and its end."""
    here, there = socket.socketpair()
    here.send(b"one"), here.send(b"two"), there.send(b"back")
    here.shutdown(socket.SHUT_WR)
    yield
    return there.recv(4), there.recv(9), there.recv(9), here.recv(9)


@reported("datagram-sender")
def unix_datagrams() -> Generator[None, None, Any]:
    """Unread datagrams of a sender that has a path."""
    folder = tempfile.mkdtemp()
    one, other = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    one.bind(f"{folder}/one"), other.bind(f"{folder}/other")
    one.sendto(b"question", f"{folder}/other")
    yield
    return other.recvfrom(9)[1] == f"{folder}/one"


@kept
def empty_datagrams() -> Generator[None, None, Any]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for text in (b"first", b"", b"third"):
        here.send(text)
    there.settimeout(0)
    yield
    return [attempt(lambda: there.recv(9)) for _ in range(4)]


@reported("outside-socket")  # which is not so: nobody has the socket open that is on its way
def nested_descriptors() -> Generator[None, None, Any]:
    """A socket on its way that has a message in which another descriptor is on its way."""
    (here, there), (inner, into), (reader, writer) = socket.socketpair(), socket.socketpair(), os.pipe()
    os.write(writer, b"deep")
    socket.send_fds(into, [b"inner"], [reader])
    socket.send_fds(here, [b"outer"], [inner.fileno()])
    inner.close(), os.close(reader)
    yield
    _, (found, *_), *_ = socket.recv_fds(there, 9, 1)
    with socket.socket(fileno=found) as one:
        text, (pipe, *_), *_ = socket.recv_fds(one, 9, 1)
    return text, os.read(pipe, 9)


def accepted(find: Any) -> Generator[None, None, Any]:
    """A connection of a Unix socket, whose client is a child. `find`: (accepted socket, child)."""
    path = f"{tempfile.mkdtemp()}/socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path), listener.listen()

    def work() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.recv(1)

    pid = child(work)
    server = listener.accept()[0]
    yield
    return find(server, pid)


@kept
def client_of_unix() -> Generator[None, None, Any]:
    """The process, user and group at the other end (SO_PEERCRED)."""

    def find(server: socket.socket, pid: int) -> object:
        found, user, group = struct.unpack("iII", server.getsockopt(1, 17, 12))
        return found == pid, user, group

    return (yield from accepted(find))


@kept
def user_of_client() -> Generator[None, None, Any]:
    """The same, for a connection that another user than root has made."""
    path = f"{tempfile.mkdtemp()}/socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path), listener.listen()
    os.chmod(path, 0o777), os.chmod(os.path.dirname(path), 0o777)

    def work() -> None:
        os.setresgid(77, 77, 77), os.setresuid(78, 78, 78)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.recv(1)

    pid = child(work)
    server = listener.accept()[0]
    yield
    found, user, group = struct.unpack("iII", server.getsockopt(1, 17, 12))
    return found == pid, user, group


@kept
def user_of_listener() -> Generator[None, None, Any]:
    """Who listens, for a client that connects later."""
    path = f"{tempfile.mkdtemp()}/socket"
    os.chmod(os.path.dirname(path), 0o777)
    reader, writer = os.pipe()

    def work() -> None:
        os.setresgid(77, 77, 77), os.setresuid(78, 78, 78)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path), listener.listen()
            os.write(writer, b".")
            signal.pause()

    pid = child(work)
    os.read(reader, 1)
    yield
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    found, user, group = struct.unpack("iII", client.getsockopt(1, 17, 12))
    return found == pid, user, group


@reported("peer-pid")
def server_of_unix() -> Generator[None, None, Any]:
    """As `client_of_unix`, seen from the client."""
    path = f"{tempfile.mkdtemp()}/socket"
    reader, writer = os.pipe()

    def work() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path), listener.listen()
            os.write(writer, b".")
            with listener.accept()[0] as server:
                server.recv(1)

    pid = child(work)
    os.read(reader, 1)
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    yield
    return struct.unpack("iII", client.getsockopt(1, 17, 12))[0] == pid


@kept
def own_pair() -> Generator[None, None, Any]:
    here, there = socket.socketpair()
    there.send(b"x")
    yield
    return struct.unpack("iII", here.getsockopt(1, 17, 12))[0] == os.getpid()
