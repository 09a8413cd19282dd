"""A host and an internet made of two network namespaces, to test the network access of sessions.

The daemon of a home runs in the namespace `host`, whose default route leads to the namespace `internet`. The network
of the machine that runs the tests is not changed.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.homes import Home

PUBLIC, PUBLIC6, HOST, PRIVATE = "51.100.198.5", "2a01:db8:5::5", "51.0.113.2", "192.168.77.1"
NAME = "example.test"  # The resolver answers PUBLIC.
NAME_OF_PRIVATE = "private-example.test"
ECHO = 7777
SLOW = 7778  # The server on this port answers each request after 0.5 s.
_RESOLVER = "51.0.113.1"

_SERVER = f'''
import socket, threading, time
def listen(address, family, port, serve):
    server = socket.create_server((address, port), family=family)
    while True:
        threading.Thread(target=serve, args=server.accept(), daemon=True).start()
def answer_late(one, peer):
    data = one.recv(1000)
    time.sleep(0.5)
    one.sendall(data)
def echo(one, peer):
    one.sendall(f"{{peer[1]}}\\n".encode())
    try:
        while data := one.recv(1000):
            one.sendall(data)
    except OSError:
        pass
def datagrams(address, port, answer):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, port))
    while True:
        data, peer = server.recvfrom(2000)
        server.sendto(answer(data), peer)
def name(query):
    question = query[12:query.index(0, 12) + 5]
    found = "{PRIVATE}" if b"private" in question else "{PUBLIC}"
    is_known = b"example" in question and question[-3] == 1
    answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\5\\0\\4" + socket.inet_aton(found) if is_known else b""
    return query[:2] + b"\\x81\\x80\\0\\1\\0" + bytes([is_known]) + b"\\0\\0\\0\\0" + question + answer
work = [(listen, a, f, {ECHO}, echo) for a, f in (("0.0.0.0", socket.AF_INET), ("{PUBLIC6}", socket.AF_INET6))]
work += [(listen, "{PUBLIC}", socket.AF_INET, {SLOW}, answer_late)]
work += [(datagrams, "{PUBLIC}", {ECHO}, bytes.upper), (datagrams, "{_RESOLVER}", 53, name)]
for what, *args in work:
    threading.Thread(target=what, args=args).start()
print("ready", flush=True)
'''
_HOST_SETUP = f"""
ip link set lo up
ip addr add {HOST}/24 dev wan; ip addr add 2a01:db8::2/64 dev wan nodad; ip link set wan up
ip route add default via 51.0.113.1; ip -6 route add default via 2a01:db8::1
"""
# The first part of a Python program that sends raw packets from within a session.
PACKETS = f"""
import socket, struct, sys
def total(data):
    data += bytes(len(data) % 2)
    number = sum(struct.unpack(f"!{{len(data) // 2}}H", data))
    return ~(number % 0xFFFF) & 0xFFFF
def packet(source, to, protocol, content, number=1, place=0):
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(content), number, place, 64, protocol, 0)
    head += socket.inet_aton(source) + socket.inet_aton(to)
    return head[:10] + struct.pack("!H", total(head)) + head[12:] + content
wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
def send(data):
    wire.sendto(data, ("eth0", 0x800, 0, 0, bytes.fromhex("02000a4d0001")))
datagram = struct.pack("!HHHH", 6666, {ECHO}, 40, 0) + b"f" * 16 + b"s" * 16
def fragment(place, more):
    send(packet("10.77.0.2", "{PUBLIC}", 17, datagram[place : place + 24], 4242, place // 8 | more << 13))
"""
# Drop bare ACKs of the port SLOW, as if the line had a long delay: only its answer acknowledges the data.
_LATE = f"tcp sport {SLOW} tcp flags & (syn | ack | psh | fin | rst) == ack drop"
_INTERNET_SETUP = f"""
nft 'table ip late {{ chain out {{ type filter hook output priority 0; {_LATE}; }}; }}'
ip link set lo up
ip addr add 51.0.113.1/24 dev lan; ip addr add 2a01:db8::1/64 dev lan nodad; ip link set lan up
ip addr add {PUBLIC}/32 dev lo; ip addr add {PUBLIC6}/128 dev lo nodad; ip addr add {PRIVATE}/32 dev lo
"""


@dataclass(frozen=True, slots=True)
class HomeInNamespace(Home):
    """A home whose commands, and so whose daemon, run in the namespaces of the process `pid`."""

    pid: int

    def argv(self, *args: str) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "-n", "-m", *Home.argv(self, *args)]


@dataclass(frozen=True, slots=True)
class Outside:
    """The pids of two processes: `host` and `internet` are each in the namespace of that name."""

    host: int
    internet: int

    def on_host(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["nsenter", "-t", str(self.host), "-n", "-m", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def moved(self, home: Home) -> HomeInNamespace:
        home.must("daemon", "stop")
        return HomeInNamespace(home.path, self.host)


@contextlib.contextmanager
def open_outside(folder: Path, resolver: str = _RESOLVER) -> Iterator[Outside]:
    """Make the two namespaces, with `resolver` as the name server in the host's resolv.conf."""
    names = folder / "resolv.conf"
    names.write_text(f"nameserver {resolver}\n")
    with _namespace(f"mount --bind {names} /etc/resolv.conf") as host, _namespace("") as internet:
        link = f"ip link add wan netns {host} type veth peer name lan netns {internet}"
        subprocess.run(link.split(), check=True)
        for pid, setup in ((host, _HOST_SETUP), (internet, _INTERNET_SETUP)):
            subprocess.run(["nsenter", "-t", str(pid), "-n", "sh", "-ec", setup], check=True)
        with _running(["nsenter", "-t", str(internet), "-n", sys.executable, "-c", _SERVER]):
            yield Outside(host, internet)


@contextlib.contextmanager
def _namespace(setup: str) -> Iterator[int]:
    """Start a process that runs `setup` in new network and mount namespaces; yield its pid."""
    with _running(["unshare", "-n", "-m", "sh", "-ec", f"{setup}\necho ready\nexec sleep 1000000"]) as pid:
        yield pid


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[int]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()
