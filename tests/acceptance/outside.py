"""A machine with an internet, both made of network namespaces: what a session's way out leads to.

The daemon of a home runs in the namespace `host`, whose default route leads to the other one. Nothing is done to the
network of the machine that the tests run on.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.homes import Home

PUBLIC, PUBLIC6, HOST, PRIVATE = "198.51.100.5", "2001:db8:5::5", "203.0.113.2", "192.168.77.1"
PUBLIC64 = "64:ff9b::c633:6405"  # PUBLIC by NAT64
CLOSED64 = ("64:ff9b::c0a8:4d01", "2002:c0a8:4d01::1", "64:ff9b::cb00:7102")  # PRIVATE by that and 6to4, HOST by that
NAME = "example.test"  # stands for PUBLIC there
BIG_NAME = "big-example.test"  # of a hundred addresses, each of them PUBLIC
NAME_OF_PRIVATE = "private-example.test"
ECHO = 7777
SLOW = 7778  # says nothing until it was told something, and then takes its time
_RESOLVER = "203.0.113.1"

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
    if b"big" in question:  # does not fit: by TCP
        return query[:2] + b"\\x83\\x80\\0\\1\\0\\0\\0\\0\\0\\0" + question
    is_known = b"example" in question and question[-3] == 1
    answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\5\\0\\4" + socket.inet_aton(found) if is_known else b""
    return query[:2] + b"\\x81\\x80\\0\\1\\0" + bytes([is_known]) + b"\\0\\0\\0\\0" + question + answer
def names(one, peer):
    with one, one.makefile("rb") as asked:
        while size := asked.read(2):
            query = asked.read(int.from_bytes(size, "big"))
            question = query[12:query.index(0, 12) + 5]
            count = 100 * (question[-3] == 1)
            answers = (b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\5\\0\\4" + socket.inet_aton("{PUBLIC}")) * count
            said = query[:2] + b"\\x81\\x80\\0\\1\\0" + bytes([count]) + b"\\0\\0\\0\\0" + question + answers
            one.sendall(len(said).to_bytes(2, "big") + said)
work = [(listen, "{_RESOLVER}", socket.AF_INET, 53, names), (listen, "0.0.0.0", socket.AF_INET, {ECHO}, echo)]
work += [(listen, a, socket.AF_INET6, {ECHO}, echo) for a in {(PUBLIC6, PUBLIC64, *CLOSED64)}]
work += [(listen, "{PUBLIC}", socket.AF_INET, {SLOW}, answer_late)]
work += [(datagrams, "{PUBLIC}", {ECHO}, bytes.upper), (datagrams, "{_RESOLVER}", 53, name)]
for what, *args in work:
    threading.Thread(target=what, args=args).start()
print("ready", flush=True)
'''
_HOST_SETUP = f"""
ip link set lo up
ip addr add {HOST}/24 dev wan; ip addr add 2001:db8::2/64 dev wan nodad; ip link set wan up
ip route add default via 203.0.113.1; ip -6 route add default via 2001:db8::1
"""
# The begin of a program in a session, which sends packets as it likes.
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
# As over a long line: that SLOW has got something is told with its answer only.
_LATE = f"tcp sport {SLOW} tcp flags & (syn | ack | psh | fin | rst) == ack drop"
_INTERNET_SETUP = f"""
nft 'table ip late {{ chain out {{ type filter hook output priority 0; {_LATE}; }}; }}'
ip link set lo up
ip addr add 203.0.113.1/24 dev lan; ip addr add 2001:db8::1/64 dev lan nodad; ip link set lan up
ip addr add {PUBLIC}/32 dev lo; ip addr add {PUBLIC6}/128 dev lo nodad; ip addr add {PRIVATE}/32 dev lo
for one in {PUBLIC64} {" ".join(CLOSED64)}; do ip addr add $one/128 dev lo nodad; done
"""


@dataclass(frozen=True, slots=True)
class HomeThere(Home):
    """A home whose commands, and so whose daemon, run in the namespaces of the process `pid`."""

    pid: int

    def argv(self, *args: str) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "-n", "-m", *Home.argv(self, *args)]


@dataclass(frozen=True, slots=True)
class Outside:
    """`host`, `internet`: processes in the two namespaces."""

    host: int
    internet: int

    def on_host(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["nsenter", "-t", str(self.host), "-n", "-m", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def moved(self, home: Home) -> HomeThere:
        home.must("daemon", "stop")
        return HomeThere(home.path, self.host)


@contextlib.contextmanager
def open_outside(folder: Path, resolver: str = _RESOLVER) -> Iterator[Outside]:
    """`resolver`: what the machine's resolv.conf names."""
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
    """A process with network and mount namespaces of its own; its pid."""
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
