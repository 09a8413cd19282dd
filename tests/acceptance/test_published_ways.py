"""`shell --publish`: what listens on IPv6 alone, and datagrams."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.acceptance.sessions import inside
from tests.acceptance.test_published import PUBLISHER, said, serve
from tests.homes import Home
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

PUBLISHER_IPV6 = "fd10:77::3"
# As SERVE, for datagrams; on the address that is given, and not on others.
SERVE_UDP = """python3 -c '
import socket, sys
one = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
one.bind((sys.argv[1], 53))
while True:
    data, peer = one.recvfrom(1 << 16)
    one.sendto(f"{sys.argv[2]} {peer[0]} {len(data)}".encode(), peer)
' %s %s >/dev/null 2>&1 & until ss -Huln sport = 53 | grep -q .; do sleep 0.05; done"""


@pytest.fixture
def port() -> int:
    return free_port()


def answered(port: int, data: bytes = b"question") -> str:
    """What a server says to a datagram; "" if nothing comes back within a second."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, contextlib.suppress(TimeoutError):
        one.settimeout(1)
        one.sendto(data, ("127.0.0.1", port))
        return one.recv(1000).decode()
    return ""


@pytest.fixture(autouse=True)
def _ended(home: Home) -> Iterator[None]:
    yield
    home.must("stop", "--all", "--discard")
    home.must("branch", "delete", *[row["name"] for row in home.must("branch", "list", "--json").json()])
    for name in ("talking", "named"):
        home.cli("rm", name)


@pytest.mark.parametrize("address", ["::1", "fd10:77::2"])
def test_what_listens_on_ipv6_alone_is_led_to(home: Home, port: int, address: str) -> None:
    home.must("shell", "six", "-d", "--publish", f"{port}:80")
    serve(home, "six", "six", address=address)
    assert said(port) == f"six {PUBLISHER_IPV6}\n"
    with socket.create_connection(("127.0.0.1", port), 5) as one:
        assert one.recv(100)
        home.must("checkpoint", "-b", "six", "talking")
        home.must("fork", "talking", "copy")
        count = "ss -Htn state established sport = :80 | wc -l"
        wait_until(lambda: inside(home, "copy", count) == "0\n", "the copy has no connection of nobody's")
        one.sendall(b"goes on")
        assert one.recv(100) == b"goes on"  # in the original


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "::1"])
def test_datagrams_pass_and_move_over_to_what_is_restored(home: Home, port: int, address: str) -> None:
    own = PUBLISHER_IPV6 if ":" in address else PUBLISHER
    done = home.must("shell", "names", "-d", "--publish", f"{port}:53/udp")
    assert f"published: 127.0.0.1:{port} leads to its port 53/udp\n" in done.stderr
    (facts,) = home.must("ps", "--json").json()
    assert facts["published"] == [f"127.0.0.1:{port}:53/udp"]
    assert answered(port) == ""  # nobody is there, which harms nothing
    inside(home, "names", SERVE_UDP % (address, "first"))
    # What is lost is sent again, as with every datagram.
    wait_until(lambda: answered(port) == f"first {own} 8", "it answers")
    wait_until(lambda: answered(port, bytes(60_000)) == f"first {own} 60000", "it answers a large one")
    home.must("checkpoint", "-b", "names", "named")
    inside(home, "names", "kill %1; wait; true")
    inside(home, "names", SERVE_UDP % (address, "second"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:  # the same client before and after
        one.connect(("127.0.0.1", port))
        one.settimeout(1)

        def told() -> str:
            with contextlib.suppress(TimeoutError):
                one.send(b"question")
                return one.recv(1000).decode()
            return ""

        wait_until(lambda: told() == f"second {own} 8", "the one that listens now answers")
        home.must("restore", "named", "-b", "names")
        wait_until(lambda: told() == f"first {own} 8", "what was restored answers")
        home.must("undo")
        wait_until(lambda: told() == f"second {own} 8", "what was there before answers again")
    refused = home.cli("shell", "other", "-d", "--publish", f"{port}:53/udp")
    assert (refused.code, "(--publish HOST:53/udp), or none" in refused.stderr) == (4, True)
    home.must("shell", "other", "-d", "--publish", f"{port}:53")  # TCP is another port
