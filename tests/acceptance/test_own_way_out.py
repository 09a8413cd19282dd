"""The way out of a private network where a daemon of an ordinary user's own serves, on a machine as most are: each user
may open the tun device.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.alone import OWN
from tests.acceptance.outside import CLOSED64, ECHO, HOST, NAME, PRIVATE, PUBLIC, PUBLIC6, HomeThere, open_outside
from tests.acceptance.people import Person, new_person
from tests.acceptance.reaching import REACHED, pasta_of, tried
from tests.acceptance.sessions import inside
from tests.homes import OPEN
from tests.waiting import PATIENCE_S, wait_until
from waypoint.model.paths import runtime_folder

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout", "without-root")]


@dataclass(frozen=True)
class OwnHomeThere(HomeThere):
    """A home whose commands are the person's."""

    person: Person

    def argv(self, *args: str) -> list[str]:
        entered, words = HomeThere.argv(self), HomeThere.argv(self, *args)
        count = entered.index("-m") + 1
        ids = [f"--reuid={self.person.uid}", f"--regid={self.person.gid}", "--init-groups"]
        return [*words[:count], "setpriv", *ids, *words[count:]]

    @property
    def runtime(self) -> Path:
        return Path(runtime_folder(str(self.path)))

    @property
    def env(self) -> dict[str, str]:
        return self.person.env(HomeThere(self.path, self.pid))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnHomeThere]:
    folder = tmp_path_factory.mktemp("outside")
    os.mknod(folder / "tun", 0o020666, os.makedev(10, 200))
    (folder / "tun").chmod(0o666)
    with open_outside(folder) as outside, new_person("way-out", "/bin/bash") as person:
        assert outside.on_host("mount", "--bind", str(folder / "tun"), "/dev/net/tun").returncode == 0
        home = OwnHomeThere(person.home / OWN, outside.host, person)
        OPEN.add(home)
        try:
            yield home
        finally:
            OPEN.discard(home)
            home.must("stop", "--all", "--discard")
            home.must("setup", "--remove", "--yes")


@pytest.fixture
def branch(there: OwnHomeThere) -> Iterator[str]:
    there.must("shell", "main", "-d", "--cwd", "/tmp")
    yield "main"
    there.must("stop", "--all", "--discard")


def test_a_session_and_its_copies_reach_what_is_public(there: OwnHomeThere, branch: str) -> None:
    done = there.must("shell", "other", "-d", "--cwd", "/tmp")
    assert "way out" not in done.stderr, done.stderr
    for one in (branch, "other"):
        assert tried(there, one, PUBLIC) == REACHED
        assert tried(there, one, PUBLIC6) == REACHED
        assert tried(there, one, PUBLIC, udp=True) == REACHED
        assert tried(there, one, NAME) == REACHED
    there.must("checkpoint", "kept", "-b", branch)
    there.must("fork", "kept", "copy")
    assert tried(there, "copy", NAME) == REACHED
    there.must("restore", "kept", "-b", branch)
    assert tried(there, branch, NAME) == REACHED


def test_nothing_else_is_reached(there: OwnHomeThere, branch: str) -> None:
    for address in (PRIVATE, HOST, "10.77.1.1", *CLOSED64):
        said = tried(there, branch, address)
        assert said in ("OSError at once\n", "ConnectionRefusedError at once\n"), (address, said)
    there.must("shell", "narrow", "-d", "--allow-net", PRIVATE, "--cwd", "/tmp")
    assert tried(there, "narrow", PRIVATE) == REACHED
    assert tried(there, "narrow", PUBLIC) == "OSError at once\n"


def test_the_way_out_outlives_the_daemon_and_pasta(there: OwnHomeThere, branch: str) -> None:
    assert tried(there, branch, PUBLIC) == REACHED
    pasta = pasta_of(there)
    os.kill(int(there.must("daemon", "status", "--json").json()["pid"]), signal.SIGKILL)
    assert tried(there, branch, PUBLIC) == REACHED
    assert pasta_of(there) == pasta
    os.kill(pasta, signal.SIGKILL)
    wait_until(lambda: tried(there, branch, PUBLIC) == REACHED, "a new one leads out", PATIENCE_S)
    assert pasta_of(there) != pasta


def test_a_router_that_was_not_finished_is_ended(there: OwnHomeThere, branch: str) -> None:
    """As if everything was killed before it was noted."""
    assert tried(there, branch, PUBLIC) == REACHED
    pasta = pasta_of(there)
    (there.runtime / "router.json").unlink()
    (group,) = (there.runtime / "without-cgroups/routers").iterdir()
    (group / "first").unlink()
    os.kill(int(there.must("daemon", "status", "--json").json()["pid"]), signal.SIGKILL)
    there.must("ps")
    wait_until(lambda: not Path(f"/proc/{pasta}").exists(), "the next daemon has ended it")
    wait_until(lambda: tried(there, branch, PUBLIC) == REACHED, "another leads out", PATIENCE_S)


def test_a_port_leads_in(there: OwnHomeThere) -> None:
    there.must("shell", "served", "-d", "--publish", "8123:8080", "--cwd", "/tmp")
    inside(there, "served", "python3 -m http.server 8080 >/dev/null 2>&1 &")
    ask = ["nsenter", "-t", str(there.pid), "-n", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}"]

    def answer() -> str:
        return subprocess.run([*ask, "http://127.0.0.1:8123/"], capture_output=True, text=True, check=False).stdout

    wait_until(lambda: answer() == "200", "the session's server answers")
    there.must("stop", "served", "--discard")


def test_it_ends_with_the_last_session_and_the_daemon(there: OwnHomeThere, branch: str) -> None:
    assert tried(there, branch, PUBLIC) == REACHED
    pasta = pasta_of(there)
    there.must("stop", branch, "--discard")
    there.must("daemon", "stop")
    wait_until(lambda: not Path(f"/proc/{pasta}").exists(), "pasta has ended")


def test_a_machine_whose_tun_device_is_root_s_is_told(tmp_path: Path) -> None:
    with open_outside(tmp_path) as outside, new_person("no-tun", "/bin/bash") as person:
        assert outside.on_host("chmod", "-c", "600", "/dev/net/tun").returncode == 0
        home = OwnHomeThere(person.home / OWN, outside.host, person)
        OPEN.add(home)
        with contextlib.ExitStack() as end:
            end.callback(OPEN.discard, home)
            end.callback(home.must, "setup", "--remove", "--yes")
            end.callback(home.must, "stop", "--all", "--discard")
            told = home.must("shell", "main", "-d", "--cwd", "/tmp").stderr
            assert "without root it takes a /dev/net/tun that every user may open" in told
            assert tried(home, "main", PUBLIC, ECHO) == "OSError at once\n"
            rows = json.loads(home.cli("doctor", "--json").stdout)
            (row,) = (one for one in rows if one["capability"].startswith("way out"))
            assert (row["state"], "sudo waypoint" in row["remedy"]) == ("degraded", True)
