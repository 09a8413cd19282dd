"""Ports of the machine that lead into a session: `shell --publish`."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.alone import OWN, Caller
from tests.acceptance.people import Person, new_person
from tests.acceptance.sessions import inside
from tests.homes import OPEN, Home, open_home
from tests.ports import free_port
from tests.processes_now import words_of
from tests.session.ledger import group_of
from tests.session.let_in import refused, succeeds
from tests.waiting import wait_until
from waypoint.linux.tasks import cgroups

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

# Answers with what it gets when no more is to come, and begins with a word and the other side's address.
SERVE = """python3 -c '
import socket, sys, threading
def serve(one, peer):
    one.sendall(f"{sys.argv[3]} {peer[0]}\\n".encode())
    while data := one.recv(1 << 16):
        one.sendall(data)
    one.close()
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
while True:
    threading.Thread(target=serve, args=server.accept(), daemon=True).start()
' %s %d %s >/dev/null 2>&1 & until ss -Htln sport = %d | grep -q .; do sleep 0.05; done"""
PUBLISHER = "10.77.0.3"
IT_SERVES = "before, its parent, which starts it, is in the group"


def serve(home: Home, branch: str, word: str, *, address: str = "0.0.0.0", port: int = 80) -> None:
    inside(home, branch, SERVE % (address, port, word, port))


def said(port: int, address: str = "127.0.0.1") -> str:
    """What the server says first; "" if the connection ends without a word."""
    with socket.create_connection((address, port), 5) as one, contextlib.suppress(ConnectionResetError):
        return one.recv(100).decode()
    return ""


def programs(home: Home) -> list[int]:
    """The programs that lead into sessions, when those that have started them are gone."""
    group = str(group_of(home) / "published")
    wait_until(lambda: len(cgroups.members(group)) <= 1, "one program for each session")
    return cgroups.members(group)


def program(home: Home) -> int:
    """The one that leads into the one session, as soon as it has begun."""
    wait_until(lambda: len(programs(home)) == 1, "one leads there")
    return programs(home)[0]


def is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def branch(home: Home, port: int) -> Iterator[str]:
    """It publishes `port`, and answers there with its name."""
    home.must("shell", "web", "-d", "--publish", f"{port}:80")
    serve(home, "web", "web")
    yield "web"
    home.must("stop", "--all", "--discard")
    assert is_free(port)


def test_it_is_said_and_leads_there(home: Home, port: int) -> None:
    other = free_port("::1")
    done = home.must("shell", "w", "-d", "--publish", f"{port}:80", "--publish", f"[::1]:{other}:81")
    assert f"published: 127.0.0.1:{port} leads to its port 80\n" in done.stderr
    assert f"published: [::1]:{other} leads to its port 81\n" in done.stderr
    serve(home, "w", "one")
    serve(home, "w", "two", address="127.0.0.1", port=81)  # on its loopback alone
    assert said(port) == f"one {PUBLISHER}\n"
    assert said(other, "::1") == f"two {PUBLISHER}\n"
    (facts,) = home.must("ps", "--json").json()
    assert facts["published"] == [f"127.0.0.1:{port}:80", f"[::1]:{other}:81"]
    assert f"published    127.0.0.1:{port}:80\n" in home.must("show", "w").stdout
    home.must("stop", "w", "--discard")
    assert is_free(port)


def test_all_bytes_pass_and_each_side_ends_by_itself(home: Home, branch: str, port: int) -> None:
    sent = os.urandom(8 << 20)
    with socket.create_connection(("127.0.0.1", port), 20) as one:
        reader = one.makefile("rb")
        assert reader.readline() == f"web {PUBLISHER}\n".encode()

        def send() -> None:
            one.sendall(sent)
            one.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        got = reader.read()
        thread.join()
    assert hashlib.sha256(got).digest() == hashlib.sha256(sent).digest()


def test_where_nobody_listens_the_connection_ends(home: Home, branch: str, port: int) -> None:
    inside(home, branch, "kill %1; wait; true")
    assert said(port) == ""
    serve(home, branch, "again")
    assert said(port) == f"again {PUBLISHER}\n"


def test_its_program_is_nobody(home: Home, branch: str, port: int) -> None:
    assert said(port)
    pid = program(home)
    assert "waypoint.egress.relay" in " ".join(words_of(pid))
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert 0 not in map(int, status["Uid"].split() + status["Gid"].split())
    assert (status["Groups"].strip(), int(status["CapEff"], 16), int(status["CapPrm"], 16)) == ("", 0, 0)


def test_a_taken_port_is_an_error_before_anything_is_started(home: Home, branch: str, port: int) -> None:
    free = free_port()
    done = home.cli("shell", "second", "-d", "--publish", f"{free}:80", "--publish", f"{port}:80")
    assert (done.code, done.stdout) == (4, "")
    assert f"cannot publish port 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "next: publish another port (--publish HOST:80), or none: --publish none\n" in done.stderr
    assert [one["branch"] for one in home.must("ps", "--all", "--json").json()] == [branch]
    assert is_free(free)
    # As it advises.
    home.must("shell", "second", "-d", "--publish", f"{free}:80")
    home.must("stop", "second")
    with socket.create_server(("127.0.0.1", free)):
        assert home.cli("shell", "second", "-d").code == 4  # the branch keeps its ports
        done = home.must("shell", "second", "-d", "--publish", "none")
        assert "published" not in done.stderr
    home.must("stop", "second")
    assert "published" not in home.must("shell", "second", "-d").stderr


class Prober:
    """Connects again and again, from another thread."""

    def __init__(self, port: int) -> None:
        self.failed: list[str] = []
        self._port, self._over = port, threading.Event()
        self._thread = threading.Thread(target=self._probe)

    def __enter__(self) -> "Prober":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _probe(self) -> None:
        while not self._over.wait(0.005):
            try:
                socket.create_connection(("127.0.0.1", self._port), 5).close()
            except OSError as error:
                self.failed.append(repr(error))


def test_a_restore_takes_it_over_and_nobody_is_refused(home: Home, branch: str, port: int) -> None:
    home.must("checkpoint", "-b", branch, "first")
    inside(home, branch, "kill %1; wait; true")
    serve(home, branch, "later")
    assert said(port) == f"later {PUBLISHER}\n"
    with Prober(port) as prober:
        home.must("restore", "first", "-b", branch)
        wait_until(lambda: said(port) == f"web {PUBLISHER}\n", "it leads into what was restored")
        home.must("undo")
        wait_until(lambda: said(port) == f"later {PUBLISHER}\n", "it leads into what was there before")
    assert prober.failed == []
    assert len(programs(home)) == 1
    home.must("rm", "first")


def test_a_fork_does_not_have_it_and_its_connections_are_reset(home: Home, branch: str, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as one:
        assert one.recv(100)
        taken = home.must("checkpoint", "-b", branch, "talking", "--json").json()
        assert taken["tier"] == "live"
        assert any(PUBLISHER in line for line in taken["degraded"])
        done = home.must("fork", "talking", "copy")
        assert f"port 127.0.0.1:{port}: not published, it stays with {branch}" in done.stderr
        facts = {one["branch"]: one["published"] for one in home.must("ps", "--json").json()}
        assert facts == {branch: [f"127.0.0.1:{port}:80"], "copy": None}
        count = "ss -Htn state established sport = :80 | wc -l"
        wait_until(lambda: inside(home, "copy", count) == "0\n", "the copy has no connection of nobody's")
        one.sendall(b"goes on")
        assert one.recv(100) == b"goes on"  # in the original
    home.must("stop", "copy")
    assert "published" not in home.must("shell", "third", "-d", "--from", "talking").stderr
    home.must("rm", "talking")


def test_it_outlives_the_daemon(home: Home, branch: str, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as one, Prober(port) as prober:
        assert one.recv(100)
        os.kill(int(home.must("daemon", "status", "--json").json()["pid"]), signal.SIGKILL)
        one.sendall(b"on")
        assert one.recv(100) == b"on"
        assert home.must("ps", "--json").json()[0]["published"] == [f"127.0.0.1:{port}:80"]
        home.must("checkpoint", "-b", branch, "adopted")
        home.must("restore", "adopted", "-b", branch)
        wait_until(lambda: said(port) == f"web {PUBLISHER}\n", "it leads into what was restored")
    assert prober.failed == []
    home.must("daemon", "stop")
    assert said(port) == f"web {PUBLISHER}\n"
    home.must("stop", branch)
    assert is_free(port)
    home.must("rm", "adopted")


def test_a_program_that_was_killed_is_started_by_the_next_daemon(home: Home, branch: str, port: int) -> None:
    home.must("daemon", "stop")
    cgroups.end(str(group_of(home) / "published"))
    assert is_free(port)
    home.must("ps")
    wait_until(lambda: not is_free(port), "somebody listens")
    assert said(port) == f"web {PUBLISHER}\n"


def test_a_program_that_is_killed_is_started_anew(home: Home, branch: str, port: int) -> None:
    assert said(port) == f"web {PUBLISHER}\n", IT_SERVES
    for _ in range(2):
        pid = program(home)
        os.kill(pid, signal.SIGKILL)
        assert said(port) == f"web {PUBLISHER}\n"
        assert programs(home) != [pid]


def test_if_none_can_be_started_the_port_is_closed_and_show_says_so(home: Home, branch: str, port: int) -> None:
    assert said(port) == f"web {PUBLISHER}\n", IT_SERVES
    pid = program(home)
    most = group_of(home) / "published" / "cgroup.max.descendants"
    most.write_text("0")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_free(port), "nobody listens any more")
    most.write_text("max")
    wait_until(lambda: "published    nothing: " in home.must("show", branch).stdout, "show says so")
    (facts,) = home.must("ps", "--json").json()
    assert facts["published"] is None
    assert facts["not_published"] == "Resource temporarily unavailable"


def test_what_was_left_of_a_session_is_swept(home: Home, branch: str) -> None:
    programs(home)
    (session,) = home.must("ps", "--json").json()
    group = group_of(home) / "published" / session["id"]
    assert group.exists()
    home.must("daemon", "stop")
    os.kill(session["pid"], signal.SIGKILL)
    wait_until(lambda: cgroups.members(str(group)) == [], "its program ends with it")
    home.must("ps")
    wait_until(lambda: not group.exists(), "its group is gone")


def test_what_comes_back_on_another_network_has_no_ports(home: Home, port: int) -> None:
    home.must("shell", "other", "-d", "--net", "host")
    home.must("checkpoint", "-b", "other", "hosts")
    home.must("stop", "other")
    home.must("shell", "other", "-d", "--net", "private", "--tier", "files", "--publish", f"{port}:80")
    serve(home, "other", "web")
    done = home.must("restore", "hosts", "-b", "other")
    assert f"port 127.0.0.1:{port}: not published: only a private network is led into" in done.stderr
    assert "published    nothing: only a private network is led into\n" in home.must("show", "other").stdout
    wait_until(lambda: is_free(port), "nobody listens any more")
    assert PUBLISHER not in subprocess.run(["ip", "address"], capture_output=True, text=True, check=True).stdout
    home.must("undo")
    wait_until(lambda: said(port) == f"web {PUBLISHER}\n", "it leads there again")
    home.must("stop", "other", "--discard")
    home.must("rm", "hosts")


def test_what_comes_back_where_the_port_is_taken_says_so(home: Home, branch: str, port: int) -> None:
    home.must("checkpoint", "-b", branch, "kept")
    home.must("stop", branch)
    with socket.create_server(("127.0.0.1", port)):
        done = home.must("restore", "kept", "-b", branch)
        assert f"port 127.0.0.1:{port}: not published: Address already in use" in done.stderr
    home.must("rm", "kept")


@pytest.mark.parametrize("net", ["host", "none"])
def test_only_a_private_network_has_it(home: Home, net: str) -> None:
    done = home.cli("shell", "other", "-d", "--net", net, "--publish", "8080:80")
    assert (done.code, "it leads into a private network" in done.stderr) == (2, True)


def test_a_live_session_keeps_what_it_has(home: Home, branch: str, port: int) -> None:
    assert home.cli("shell", branch, "-d", "--publish", "8080:80").code == 4
    home.must("shell", branch, "-d", "--publish", f"{port}:80")


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with new_person("publishes", "/bin/bash") as made:
        yield made


@pytest.mark.requires("public-checkout")
def test_low_ports_are_roots(person: Person, port: int) -> None:
    with open_home("publishes") as home:
        home.must("setup", "--user", person.name)
        done = person.can(home, "shell", "mine", "-d", "--publish", "1023:80")
        refused(done, "ports below 1024 are root's")
        succeeds(person.can(home, "shell", "mine", "-d", "--publish", f"{port}:80"))
        assert not is_free(port)
        home.must("shell", "roots", "-d", "--publish", "127.77.77.1:1023:80")


@pytest.mark.requires("public-checkout")
def test_a_low_port_does_not_come_back_when_trust_was_taken_back(person: Person) -> None:
    with open_home("publishes") as home:
        home.must("setup", "--user", person.name, "--trust", "full")
        succeeds(person.can(home, "shell", "low", "-d", "--publish", "127.77.77.2:1023:80"))
        succeeds(person.can(home, "checkpoint", "low-cp", "-b", "low"))
        succeeds(person.can(home, "stop", "low"))
        home.must("setup", "--user", person.name)
        for words in (("shell", "low", "-d"), ("restore", "low-cp", "-b", "low")):
            refused(person.can(home, *words), "cannot publish port 127.77.77.2:1023: ports below 1024 are root's")
        succeeds(person.can(home, "shell", "low", "-d", "--publish", "none"))


@pytest.mark.requires("public-checkout", "without-root")
def test_without_root_it_is_the_same(person: Person, port: int) -> None:
    user = Caller(Home(person.home / OWN), person, "respawn")
    OPEN.add(user.home)
    try:
        user.must("shell", "main", "-d", "--publish", f"{port}:8080")
        user.exec(SERVE % ("0.0.0.0", 8080, "main", 8080))
        assert said(port) == f"main {PUBLISHER}\n"
        os.kill(json.loads(user.must("daemon", "status", "--json"))["pid"], signal.SIGKILL)
        user.must("checkpoint", "one")
        user.must("restore", "one")
        wait_until(lambda: said(port) == f"main {PUBLISHER}\n", "it leads into what was restored")
        assert user.try_to("shell", "low", "-d", "--publish", "1023:80").returncode == 4
    finally:
        OPEN.discard(user.home)
        user.must("stop", "--all", "--discard")
        assert is_free(port)
        user.must("setup", "--remove", "--yes")
