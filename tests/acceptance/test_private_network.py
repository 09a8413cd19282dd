"""The network access of sessions with a private network: which addresses they and their copies reach."""

import itertools
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.outside import (
    ECHO,
    HOST,
    NAME,
    NAME_OF_PRIVATE,
    PACKETS,
    PRIVATE,
    PUBLIC,
    PUBLIC6,
    SLOW,
    HomeInNamespace,
    Outside,
    open_outside,
)
from tests.acceptance.sessions import inside
from tests.homes import open_home
from tests.waiting import wait_until
from waypoint.egress import session_side
from waypoint.linux.net import netns

pytestmark = [pytest.mark.privileged]

# "late": after a lost question to a name server, which is asked again after 5 s, or after the limit of 8 s.
TRY = """python3 -c '
import socket, sys, time
began, kind = time.monotonic(), {kind}
try:
    family, *_, address = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), type=kind)[0]
    with socket.socket(family, kind) as one:
        one.settimeout(8)
        one.connect(address)
        one.send(b"GET / HTTP/1.0\\r\\n\\r\\n")
        said = one.recv(100)
    print("reached" if said else "ended", end="")
except OSError as error:
    print(type(error).__name__, end="")
print("", "late" if time.monotonic() - began > 4.5 else "at once")
' {address} {port}"""
_NUMBERS = itertools.count()
REACHED = "reached at once\n"
SETTINGS = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout"


def tried(home: HomeInNamespace, branch: str, address: str, port: int = ECHO, *, udp: bool = False) -> str:
    kind = "socket.SOCK_DGRAM" if udp else "socket.SOCK_STREAM"
    return inside(home, branch, TRY.format(kind=kind, address=address, port=port))


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """The namespaces `host` and `internet`."""
    with open_outside(tmp_path_factory.mktemp("outside")) as made:
        yield made


@pytest.fixture(scope="module")
def there(outside: Outside) -> Iterator[HomeInNamespace]:
    """A home whose daemon runs in the namespace `host`."""
    with open_home("way-out") as home:
        yield outside.moved(home)


@pytest.fixture
def branch(there: HomeInNamespace) -> Iterator[str]:
    name = f"b{next(_NUMBERS)}"  # a new name, as a known branch starts from its last files
    there.must("shell", name, "-d")
    yield name
    there.must("stop", "--all", "--discard")


def pasta_of(home: HomeInNamespace) -> int:
    return int(json.loads((home.runtime / "router.json").read_bytes())["pid"])


def test_a_session_reaches_public_addresses(there: HomeInNamespace, branch: str) -> None:
    assert tried(there, branch, PUBLIC) == REACHED
    assert tried(there, branch, PUBLIC6) == REACHED
    assert tried(there, branch, PUBLIC, udp=True) == REACHED
    assert tried(there, branch, NAME) == REACHED
    assert tried(there, branch, "unknown.test") == "gaierror at once\n"
    assert tried(there, branch, PUBLIC, port=9) == "ConnectionRefusedError at once\n"


@pytest.mark.soak(part="walls")
def test_a_slow_server_is_reached(there: HomeInNamespace, branch: str) -> None:
    """pasta of Debian 12 may send a packet without any flag if two packets of a client arrive at once.

    That happens when pasta is slow, as it is under strace.
    """
    assert tried(there, branch, PUBLIC) == REACHED
    with subprocess.Popen(["strace", "-p", str(pasta_of(there))], stderr=subprocess.PIPE) as slow:
        assert slow.stderr is not None
        assert b"attached" in slow.stderr.readline()
        reading = threading.Thread(target=slow.stderr.read)
        reading.start()
        found = [tried(there, branch, PUBLIC, port=SLOW) for _ in range(5)]
        slow.terminate()
        reading.join()
    assert found == [REACHED] * 5


def test_private_addresses_and_other_sessions_are_not_reached(
    there: HomeInNamespace, branch: str, outside: Outside
) -> None:
    reach = f"import socket; socket.create_connection(('{PRIVATE}', {ECHO}), 5)"
    assert outside.on_host("python3", "-c", reach).returncode == 0  # the host itself reaches the address
    listen = f"import socket; s = socket.create_server(('{HOST}', 8000)); print('ready', flush=True); s.accept()"
    outside.on_host("ip", "route", "add", "local", "51.77.0.0/24", "dev", "lo")  # the host answers for all of these
    there.must("shell", "other", "-d")
    serve = f"python3 -m http.server -b 10.77.0.2 {ECHO} >/dev/null 2>&1 &"
    inside(there, "other", f"{serve} until ss -Htln sport = {ECHO} | grep -q .; do sleep 0.05; done")
    assert tried(there, "other", "10.77.0.2").startswith("reached")  # its own address
    with subprocess.Popen(outside_command(outside, listen), stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        for address, port in (
            (PRIVATE, ECHO),
            (HOST, 8000),
            ("10.77.0.2", ECHO),
            ("10.77.1.2", ECHO),
            ("10.77.1.1", 53),
            ("51.77.0.9", 8000),
            ("64:ff9b::51.77.0.9", 8000),
            ("64:ff9b::10.0.0.1", ECHO),
            ("2002:a00:1::1", ECHO),
            ("192.88.99.1", ECHO),
            ("203.0.113.1", ECHO),
        ):
            said = tried(there, branch, address, port)
            assert said.split()[0] in ("OSError", "ConnectionRefusedError"), (address, said)
            assert said.endswith("at once\n"), (address, said)
        assert tried(there, branch, PRIVATE, udp=True) == "OSError at once\n"
        server.kill()


def outside_command(outside: Outside, code: str) -> list[str]:
    return ["nsenter", "-t", str(outside.host), "-n", "python3", "-c", code]


def test_root_in_a_session_cannot_change_its_network(there: HomeInNamespace) -> None:
    there.must("shell", "u", "-d", "--allow", "userns")
    for command in (
        "ip route add 192.168.0.0/16 dev eth0",
        "ip link del eth0",
        "unshare -r ip route add 1.2.3.4 dev eth0",
    ):
        done = there.cli("exec", "-b", "u", "--", command)
        assert done.code != 0, command
    assert tried(there, "u", PUBLIC) == REACHED
    there.must("stop", "u", "--discard")


def packets(home: HomeInNamespace, branch: str, code: str) -> str:
    return inside(home, branch, f"python3 -c '{PACKETS}\n{code}'")


def test_forged_icmp_errors_do_not_reach_another_session(there: HomeInNamespace, branch: str) -> None:
    """An ICMP error that quotes a packet of the other session: conntrack would assign it to that connection."""
    there.must("shell", "heard", "-d")
    code = f"""
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.connect(("{PUBLIC}", {ECHO}))
one.send(b"x")
one.recv(9)
open("/tmp/listens", "w").close()
raw.settimeout(60)
open("/tmp/heard", "wb").write(raw.recv(2000))"""
    inside(
        there,
        "heard",
        f"python3 -c '{PACKETS}\n{code}' >/dev/null 2>&1 & until [ -e /tmp/listens ]; do sleep 0.05; done",
    )
    code = f"""
for port in range(1024, 65536):
    about = packet("10.77.1.2", "{PUBLIC}", 17, struct.pack("!HHHH", port, {ECHO}, 9, 0) + b"x")
    said = struct.pack("!BBHI", 3, 3, 0, 0) + about + b"secret"
    send(packet("10.77.0.2", "10.77.1.2", 1, said[:2] + struct.pack("!H", total(said)) + said[4:]))"""
    packets(there, branch, code)
    assert tried(there, "heard", PUBLIC, udp=True) == REACHED  # earlier packets would have arrived by now
    assert inside(there, "heard", "cat /tmp/heard 2>/dev/null; true") == ""


def test_fragments_of_two_sessions_are_not_combined(there: HomeInNamespace, branch: str) -> None:
    """Both sessions have the same address and choose the ids of their packets themselves."""
    there.must("shell", "narrow", "-d", "--allow-net", "51.0.113.77")
    second = """
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(("10.77.0.2", 6666))
one.settimeout(1)
fragment(24, 0)
try:
    print(one.recv(99))
except TimeoutError:
    print("nothing")"""
    packets(there, "narrow", "fragment(0, 1)")
    assert packets(there, branch, second) == "nothing\n"


@pytest.mark.soak(part="faults")
def test_pasta_sees_the_end_of_every_connection(there: HomeInNamespace, branch: str) -> None:
    """Otherwise pasta would keep connections that are no longer counted for the session."""

    def open_files() -> int:
        return len(os.listdir(f"/proc/{pasta_of(there)}/fd"))

    for address, kind in ((PUBLIC, "IPPROTO_IP, socket.IP_TTL"), (PUBLIC6, "IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS")):
        assert tried(there, branch, PUBLIC) == REACHED
        before = open_files()
        code = f"""
def connected():
    one = socket.create_connection(("{address}", {ECHO}), 5)
    one.recv(9)
    return one
for one in [connected() for _ in range(200)]:
    one.setsockopt(socket.{kind}, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()"""
        packets(there, branch, code)
        wait_until(lambda most=before + 100: open_files() < most, f"pasta sees the ends ({address})")
    code = f"""
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.settimeout(1)
one.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([1, 1, 1, 0]))
one.sendto(b"x", ("{PUBLIC}", {ECHO}))
try:
    print(one.recv(9))
except TimeoutError:
    print("nothing")"""
    assert "nothing" in packets(there, branch, code)


def test_half_open_connections_are_tracked_as_long_as_pasta_keeps_them(there: HomeInNamespace, branch: str) -> None:
    assert tried(there, branch, PUBLIC) == REACHED
    for state in ("close_wait", "fin_wait", "unacknowledged", "max_retrans"):
        held = netns.open_held_by(pasta_of(there))
        try:
            assert int(netns.work_within(held, Path(f"{SETTINGS}_{state}").read_text)) > 7200, state
        finally:
            os.close(held)


TALK = f"""python3 -c '
import socket, time
one = socket.create_connection(("{PUBLIC}", {ECHO}))
one.recv(100)
open("/tmp/talks", "w").close()
number = 0
try:
    while True:
        one.sendall(b"x")
        one.recv(100)
        number += 1
        open("/tmp/number", "w").write(str(number))
        time.sleep(0.02)
except OSError as error:
    open("/tmp/ended", "w").write(type(error).__name__)
time.sleep(1000)
' >/dev/null 2>&1 &
python3 -c '
import socket, time
one = socket.create_connection(("{PUBLIC}", {ECHO}))
one.recv(100)
open("/tmp/waits", "w").close()
try:
    one.recv(100)
except OSError as error:
    open("/tmp/woken", "w").write(type(error).__name__)
time.sleep(1000)
' >/dev/null 2>&1 &
until [ -e /tmp/talks ] && [ -e /tmp/waits ]; do sleep 0.05; done"""


def is_reset(home: HomeInNamespace, branch: str) -> bool:
    return inside(home, branch, "cat /tmp/ended /tmp/woken 2>/dev/null; true") == "ConnectionResetError" * 2


def test_connections_continue_in_the_original_and_are_reset_in_copies(there: HomeInNamespace, branch: str) -> None:
    inside(there, branch, TALK)
    taken = there.must("checkpoint", "-b", branch, "talking", "--json").json()
    assert taken["tier"] == "live"
    assert [one["code"] for one in taken["degraded"] if PUBLIC in one["subject"]] == ["outside-connection"]
    there.must("fork", "talking", "-n", "2", "--prefix", "copy")
    for copy in ("copy-1", "copy-2"):
        wait_until(lambda name=copy: is_reset(there, name), "both programs see a reset")
        assert tried(there, copy, PUBLIC) == REACHED
        assert tried(there, copy, NAME) == REACHED
    before = int(inside(there, branch, "cat /tmp/number"))
    wait_until(
        lambda: int(inside(there, branch, "cat /tmp/number") or 0) > before, "the original's connection continues"
    )
    assert inside(there, branch, "ls /tmp/ended /tmp/woken 2>/dev/null | wc -l") == "0\n"
    there.must("restore", "talking", "-b", branch)
    wait_until(lambda: is_reset(there, branch), "both programs see a reset")
    assert tried(there, branch, PUBLIC) == REACHED
    there.must("undo")
    wait_until(lambda: is_reset(there, branch), "both programs see a reset")
    assert tried(there, branch, PUBLIC) == REACHED
    there.must("rm", "talking")


def test_two_sessions_use_the_same_ports_at_once(there: HomeInNamespace, branch: str) -> None:
    there.must("shell", "c", "-d")
    code = f"""python3 -c '
import socket
one = socket.create_connection(("{PUBLIC}", {ECHO}), 5, ("10.77.0.2", 5555))
print(one.getsockname()[1], one.recv(100).decode(), end="")
open("/tmp/up", "w").close()
import time; time.sleep(1000)
' > /tmp/said & until [ -e /tmp/up ]; do sleep 0.05; done; true"""
    for one in (branch, "c"):
        inside(there, one, code)
    for one in (branch, "c"):
        assert "ESTAB" in inside(there, one, "ss -Htn state established sport = 5555 | sed s/^/ESTAB/")


@pytest.mark.soak(part="faults")
def test_the_network_works_after_the_daemon_or_pasta_was_killed(there: HomeInNamespace, branch: str) -> None:
    inside(there, branch, TALK)
    pasta = pasta_of(there)
    os.kill(int(there.must("daemon", "status", "--json").json()["pid"]), signal.SIGKILL)
    assert tried(there, branch, PUBLIC) == REACHED
    assert pasta_of(there) == pasta
    assert inside(there, branch, "cat /tmp/ended /tmp/woken 2>/dev/null; true") == ""
    os.kill(pasta, signal.SIGKILL)
    wait_until(lambda: is_reset(there, branch), "the programs see a reset")
    assert tried(there, branch, PUBLIC) == REACHED
    assert pasta_of(there) != pasta
    there.must("shell", "late", "-d")
    assert tried(there, "late", NAME) == REACHED


def test_a_connection_that_a_killed_daemon_left_half_made_is_completed(there: HomeInNamespace, branch: str) -> None:
    assert tried(there, branch, PUBLIC) == REACHED
    records = (json.loads(path.read_bytes()) for path in there.runtime.glob("sessions/*/record.json"))
    (pid,) = (record["init_pid"] for record in records if record["row"]["branch"] == branch)
    netns.work_in(pid, session_side.furnish)  # the routes are now as they are before the last step
    assert tried(there, branch, PUBLIC) != REACHED
    os.kill(int(there.must("daemon", "status", "--json").json()["pid"]), signal.SIGKILL)
    assert tried(there, branch, PUBLIC) == REACHED


def test_allow_net_limits_the_reachable_addresses(there: HomeInNamespace) -> None:
    there.must("shell", "n", "-d", "--allow-net", f"{NAME},{PRIVATE}")
    assert tried(there, "n", PUBLIC) == REACHED
    assert tried(there, "n", NAME) == REACHED
    assert tried(there, "n", PRIVATE) == REACHED
    assert tried(there, "n", "51.0.113.1") == "OSError at once\n"
    assert tried(there, "n", "51.0.113.1", udp=True) == "OSError at once\n"
    # A name allows only public addresses, as the owner of the name chooses its address.
    there.must("shell", "name", "-d", "--allow-net", f"{NAME},{NAME_OF_PRIVATE}")
    assert tried(there, "name", NAME) == REACHED
    assert tried(there, "name", PRIVATE) == "OSError at once\n"
    there.must("fork", "n", "m")
    assert tried(there, "m", PUBLIC) == REACHED
    assert tried(there, "m", "51.0.113.1") == "OSError at once\n"
    assert "--allow-net" in there.cli("shell", "n", "-d", "--allow-net", PUBLIC).stderr
    there.must("stop", "--all", "--discard")
    done = there.cli("shell", "n", "-d", "--allow-net", "not a name")
    assert (done.code, "neither the name of a host nor a network" in done.stderr) == (2, True)
    done = there.cli("shell", "n", "-d", "--net", "none", "--allow-net", NAME)
    assert (done.code, "only a private network (--net private) can be restricted" in done.stderr) == (2, True)


def test_with_net_none_connections_are_refused_at_once(there: HomeInNamespace) -> None:
    there.must("shell", "none", "-d", "--net", "none")
    assert tried(there, "none", PUBLIC) == "OSError at once\n"
    assert tried(there, "none", NAME) == "gaierror at once\n"
    there.must("stop", "none", "--discard")


@pytest.mark.soak(part="faults")
def test_pasta_ends_with_the_home(outside: Outside) -> None:
    with open_home("way-out") as home:
        there = outside.moved(home)
        there.must("shell", "b", "-d")
        assert tried(there, "b", PUBLIC) == REACHED
        pasta = pasta_of(there)
        assert Path(f"/proc/{pasta}").exists()
    wait_until(lambda: not Path(f"/proc/{pasta}").exists(), "pasta has ended with the home")


@pytest.mark.soak(part="walls")
def test_names_are_resolved_where_the_host_uses_a_local_resolver(tmp_path: Path) -> None:
    """For example systemd-resolved, which listens on a loopback address of the host."""
    with open_outside(tmp_path, "127.0.0.53") as outside, open_home("way-out") as home:
        relay = (
            "import socket; s = socket.socket(2, 2); s.bind(('127.0.0.53', 53)); print(flush=True)\n"
            "while True:\n d, a = s.recvfrom(999); u = socket.socket(2, 2)\n"
            " u.sendto(d, ('51.0.113.1', 53)); s.sendto(u.recv(999), a)"
        )
        with subprocess.Popen(outside_command(outside, relay), stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()
            there = outside.moved(home)
            there.must("shell", "b", "-d")
            assert tried(there, "b", NAME) == REACHED
            server.kill()


@pytest.mark.soak(part="walls")
def test_without_a_route_connections_are_refused_at_once_and_doctor_reports_it(tmp_path: Path) -> None:
    with open_outside(tmp_path) as outside, open_home("way-out") as home:
        outside.on_host("ip", "route", "del", "default")
        outside.on_host("ip", "-6", "route", "del", "default")
        there = outside.moved(home)
        there.must("shell", "b", "-d")
        assert tried(there, "b", PUBLIC) == "OSError at once\n"
        assert tried(there, "b", NAME) == "gaierror at once\n"
        (row,) = (
            one for one in there.must("doctor", "--json").json() if one["capability"].startswith("internet access")
        )
        assert (row["state"], "pasta" in row["why"]) == ("degraded", True)
        outside.on_host("ip", "route", "add", "default", "via", "51.0.113.1")
        there.must("shell", "c", "-d")
        assert tried(there, "c", PUBLIC) == REACHED
        assert "nothing outside" not in there.must("show", "c").stdout
        assert "nothing outside" in there.must("show", "b").stdout  # a session keeps its network set-up
