"""`shell --net`: which addresses a session can reach."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.answers import unusual
from tests.homes import Home

pytestmark = pytest.mark.privileged

STRANGER = Path(__file__).with_name("connecting_stranger.py")


@contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


REACH = "python3 -c 'import socket,sys; socket.create_connection((\"127.0.0.1\", int(sys.argv[1])), 2)' {}"
SERVE = (
    'python3 -c \'import socket; s = socket.create_server(("127.0.0.1", {0})); '
    'socket.create_connection(("127.0.0.1", {0}), 2); print("reached")\''
)

ASK_FOR_MPTCP = "python3 -c 'import socket; socket.socket(proto=socket.IPPROTO_MPTCP)' 2>&1"


def test_each_session_with_a_private_network_has_its_own_ports(home: Home, person: Person) -> None:
    with listening() as port, session(home, person.name) as branch, session(home, person.name) as other:
        assert home.cli("exec", "-b", branch, "--", REACH.format(port)).code == 1
        assert inside(home, branch, SERVE.format(port)) == "reached\n"
        assert inside(home, branch, SERVE.format(80)) == "reached\n"
        inside(home, branch, f"python3 -m http.server -b 127.0.0.1 {port} >/dev/null 2>&1 & true")
        assert home.cli("exec", "-b", other, "--", REACH.format(port)).code == 1
        interfaces = inside(home, branch, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort")
        assert interfaces in ("eth0\nlo\n", "lo\n")  # no eth0 where this machine itself has no network


def test_net_host_gives_the_network_of_the_host(home: Home, person: Person) -> None:
    with listening() as port, session(home, person.name, "--net", "host") as branch:
        inside(home, branch, REACH.format(port))
        assert (
            inside(home, branch, "cat /proc/net/dev | wc -l")
            == f"{len(Path('/proc/net/dev').read_text().splitlines())}\n"
        )


def test_net_none_gives_only_the_loopback_interface(home: Home, person: Person) -> None:
    with listening() as port, session(home, person.name, "--net", "none") as branch:
        assert home.cli("exec", "-b", branch, "--", REACH.format(port)).code == 1
        assert inside(home, branch, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo\n"
        assert inside(home, branch, SERVE.format(8080)) == "reached\n"


@pytest.mark.requires("criu")
def test_programs_that_ask_for_mptcp_use_tcp_in_original_and_copy(home: Home, person: Person) -> None:
    """CRIU cannot dump MPTCP sockets; servers of Go 1.24 listen with them where the kernel offers them."""
    with session(home, person.name) as branch:
        home.must("checkpoint", f"{branch}-1", "-b", branch)
        home.must("fork", f"{branch}-1", f"{branch}-copy")
        for one in (branch, f"{branch}-copy"):
            assert "Protocol not" in home.cli("exec", "-b", one, "--", ASK_FOR_MPTCP).stdout
        home.must("stop", f"{branch}-copy", "--discard")


@pytest.mark.soak(part="walls")
@pytest.mark.requires("criu")
def test_a_server_on_a_port_of_the_host_is_never_copied(home: Home, person: Person) -> None:
    """Also where CRIU would allow it: two restored servers would share the port and split its connections."""
    with session(home, person.name, "--net", "host") as branch:
        inside(home, branch, START_SERVER)
        port = int(inside(home, branch, "cat /tmp/port"))
        point = home.must("checkpoint", "-b", branch, "--tier", "live", "--json", f"{branch}-point").json()
        assert [(one["code"], one["subject"]) for one in unusual(point["degraded"])] == [("host-ports", f"tcp {port}")]
        for generation in ("first", "restored"):
            done = home.cli("fork", point["name"], f"{branch}-copy")
            assert (done.code, done.stdout) == (5, ""), (generation, done)
            assert f"tcp {port}" in done.stderr
            assert inside(home, branch, ask_server(port)) == "kept\n"
            home.must("stop", "--files", branch)
            done = home.cli("fork", point["name"], "-n", "2")  # only one of the two copies could have the port
            assert (done.code, done.stdout) == (5, ""), (generation, done)
            assert (
                "\n  next: make one copy only; a session with --net private can be copied any number of times; to "
                in done.stderr
            )
            home.must("fork", point["name"], f"{branch}-one")
            assert inside(home, f"{branch}-one", ask_server(port)) == "kept\n"
            home.must("stop", f"{branch}-one", "--discard")
            home.must("restore", "-b", branch, point["name"])  # now the port is free
            assert inside(home, branch, ask_server(port)) == "kept\n"
        home.must("rm", point["name"])


@pytest.mark.requires("criu")
def test_a_server_on_a_port_of_the_host_is_restored_in_place_of_itself(home: Home, person: Person) -> None:
    with session(home, person.name, "--net", "host") as branch:
        inside(home, branch, START_SERVER + "; mark=early")
        port = int(inside(home, branch, "cat /tmp/port"))
        point = home.must("checkpoint", "-b", branch, "--tier", "live", "--json", f"{branch}-point").json()
        for _generation in range(3):  # from the second on, it replaces a server that CRIU has restored
            inside(home, branch, "mark=late")
            home.must("restore", "-b", branch, point["name"])
            assert inside(home, branch, "echo $mark; jobs -r | wc -l") == "early\n1\n"
            for _caller in range(4):
                assert inside(home, branch, ask_server(port)) == "kept\n"
        inside(home, branch, "mark=later")
        home.must("restore", "-b", branch, point["name"])
        home.must("undo")
        assert inside(home, branch, f"echo $mark; {ask_server(port)}") == "later\nkept\n"
        home.must("rm", point["name"])


@pytest.mark.requires("criu")
def test_a_restore_is_refused_while_another_program_has_the_port(home: Home, person: Person) -> None:
    with session(home, person.name, "--net", "host") as branch:
        inside(home, branch, START_SERVER)
        port = int(inside(home, branch, "cat /tmp/port"))
        point = home.must("checkpoint", "-b", branch, "--tier", "live", "--json", f"{branch}-point").json()
        inside(home, branch, "mark=late; kill %1; wait; sleep 1000 & true")
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            done = home.cli("restore", "-b", branch, point["name"])
            assert (done.code, done.stdout) == (5, "")
            assert f"tcp {port}" in done.stderr
            assert "\n  next: end the other programs; to restore only the files: " in done.stderr
            assert inside(home, branch, "echo $mark; jobs -r | wc -l") == "late\n1\n"
        home.must("restore", "-b", branch, point["name"])
        assert inside(home, branch, f"echo -$mark-; {ask_server(port)}") == "--\nkept\n"
        home.must("rm", point["name"])


@pytest.mark.requires("criu")
def test_a_restore_in_place_that_fails_leaves_the_server_and_its_socket(
    home: Home, person: Person, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    held = tmp_path / "held"
    held.write_text("of the bind, whose files no capture keeps")
    with session(home, person.name, "--net", "host", "--bind", f"{tmp_path}:/mnt") as branch:
        inside(home, branch, "exec 8</mnt/held")
        inside(home, branch, START_SERVER)
        port = int(inside(home, branch, "cat /tmp/port"))
        point = home.must("checkpoint", "-b", branch, "--tier", "live", "--json", f"{branch}-point").json()
        inside(home, branch, "exec 8<&-; mark=late")
        before = socket_row(port)
        held.unlink()  # CRIU needs this file at about the time it binds the sockets, so the restore fails half-way
        done = home.cli("restore", "-b", branch, "--tier", "live", point["name"])
        assert (done.code, done.stdout) == (5, "")
        assert "criu-log" in done.stderr
        assert socket_row(port) == before
        assert inside(home, branch, f"echo $mark; {ask_server(port)}") == "late\nkept\n"
        home.must("rm", point["name"])


@pytest.mark.requires("criu", "own-criu")
def test_users_of_the_hosts_network_do_not_stop_captures_and_copies(home: Home, person: Person) -> None:
    with session(home, person.name, "--net", "host") as branch:
        inside(home, branch, "for n in 1 2 3; do sleep 1000 & done; mark=kept")
        with subprocess.Popen([sys.executable, str(STRANGER)], stdin=subprocess.PIPE) as stranger:
            for number in range(2):
                point, copy = f"{branch}-{number}", f"{branch}-copy-{number}"
                home.must("checkpoint", "-b", branch, "--tier", "live", point)
                home.must("fork", "--tier", "live", point, copy)
                assert inside(home, copy, "echo $mark") == "kept\n"
                home.must("stop", copy, "--discard")
                home.must("rm", point)
            stranger.communicate()
        assert stranger.returncode == 0


@pytest.mark.soak(part="walls")
@pytest.mark.requires("criu")
def test_a_connection_in_the_hosts_network_is_closed_in_copies(home: Home, person: Person) -> None:
    with listening() as port, session(home, person.name, "--net", "host") as branch:
        inside(home, branch, f"exec 7<>/dev/tcp/127.0.0.1/{port}; mark=kept")
        captured = home.must("checkpoint", "-b", branch, "--tier", "live", "--json", f"{branch}-open").json()
        assert [one["code"] for one in unusual(captured["degraded"])] == ["host-connections"]
        read = "timeout 5 cat <&7; echo $? $mark"
        copies = [f"{branch}-copy-1", f"{branch}-copy-2"]
        home.must("fork", captured["name"], "-n", "2", "--prefix", f"{branch}-copy")  # while the original session runs
        for copy in copies:
            assert inside(home, copy, read) == "0 kept\n"
        inside(home, branch, "echo heard >&7")  # the connection is still open in the original
        inside(home, branch, "mark=late")
        home.must("restore", "-b", branch, captured["name"])
        assert inside(home, branch, read) == "0 kept\n"
        inside(home, branch, f"exec 7<>/dev/tcp/127.0.0.1/{port}; mark=later")
        home.must("stop", branch, "--checkpoint", f"{branch}-parked")
        home.must("restore", f"{branch}-parked")
        assert inside(home, branch, read) == "0 later\n"
        home.must("stop", *copies, "--discard")
        home.must("rm", captured["name"], f"{branch}-parked")


def socket_row(port: int) -> list[str]:
    """Return the address, owner and inode of the socket that listens on the port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (row,) = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"]
    return [row[1], row[7], row[9]]


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
