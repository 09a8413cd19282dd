"""`shell --net`: whom a session reaches."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, refused, session
from tests.homes import Home

pytestmark = pytest.mark.privileged


@contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


REACH = "python3 -c 'import socket,sys; socket.create_connection((\"127.0.0.1\", int(sys.argv[1])), 2)' {}"
SERVE = (
    'python3 -c \'import socket; s = socket.create_server(("127.0.0.1", {0})); '
    'socket.create_connection(("127.0.0.1", {0}), 2); print("reached")\''
)


def test_a_private_network_is_the_sessions_own(home: Home, person: Person) -> None:
    with listening() as port, session(home, person.name) as branch, session(home, person.name) as other:
        assert home.cli("exec", "-b", branch, "--", REACH.format(port)).code == 1
        assert inside(home, branch, SERVE.format(port)) == "reached\n"
        assert inside(home, branch, SERVE.format(80)) == "reached\n"
        inside(home, branch, f"python3 -m http.server -b 127.0.0.1 {port} >/dev/null 2>&1 & true")
        assert home.cli("exec", "-b", other, "--", REACH.format(port)).code == 1
        assert (
            inside(home, branch, "ls /sys/class/net /proc/net/dev >/dev/null; cat /proc/net/dev | tail -n +3 | wc -l")
            == "1\n"
        )


def test_the_hosts_network_is_the_hosts(home: Home, person: Person) -> None:
    with listening() as port, session(home, person.name, "--net", "host") as branch:
        inside(home, branch, REACH.format(port))
        assert (
            inside(home, branch, "cat /proc/net/dev | wc -l")
            == f"{len(Path('/proc/net/dev').read_text().splitlines())}\n"
        )


def test_no_network_is_loopback_and_nothing_else(home: Home, person: Person) -> None:
    with listening() as port, session(home, person.name, "--net", "none") as branch:
        assert home.cli("exec", "-b", branch, "--", REACH.format(port)).code == 1
        assert inside(home, branch, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo\n"
        assert inside(home, branch, SERVE.format(8080)) == "reached\n"


def test_a_network_that_there_is_not_is_refused(home: Home) -> None:
    assert "--net" in refused(home, "--net", "public")


@pytest.mark.requires("criu")
def test_what_has_a_port_of_the_host_is_never_there_twice(home: Home, person: Person) -> None:
    """Also where CRIU would let it: two servers that it has brought back would share the port, and the callers."""
    with session(home, person.name, "--net", "host") as branch:
        inside(home, branch, START_SERVER)
        port = int(inside(home, branch, "cat /tmp/port"))
        point = home.must("checkpoint", "-b", branch, "--tier", "live", "--json", f"{branch}-point").json()
        assert any(f"tcp {port}" in item for item in point["degraded"])
        for generation in ("first", "brought back"):
            for verb in (("fork", point["name"], f"{branch}-copy"), ("restore", "-b", branch, point["name"])):
                done = home.cli(*verb)
                assert (done.code, done.stdout) == (5, ""), (generation, done)
                assert f"tcp {port}" in done.stderr
            assert inside(home, branch, ask_server(port)) == "kept\n"
            home.must("stop", branch)
            done = home.cli("fork", point["name"], "-n", "2")  # one would have it, the other would not
            assert (done.code, done.stdout) == (5, ""), (generation, done)
            home.must("restore", "-b", branch, point["name"])  # now nothing else has it
            assert inside(home, branch, ask_server(port)) == "kept\n"
        home.must("rm", point["name"])


START_SERVER = """cat >/tmp/server.py <<'END'
import socket
with socket.create_server(("127.0.0.1", 0)) as listener:
    open("/tmp/port", "w").write(str(listener.getsockname()[1]))
    while True:
        with listener.accept()[0] as caller:
            caller.sendall(b"kept\\n")
END
python3 /tmp/server.py & until [ -s /tmp/port ]; do :; done"""


def ask_server(port: int) -> str:
    return f"exec 9<>/dev/tcp/127.0.0.1/{port}; read -r said <&9; exec 9>&-; echo $said"
