"""The private CRIU: installed whole or not at all."""

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.processes.stages import in_own_process
from tests.processes_now import name_of, processes, words_of
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.storage import mounts
from waypoint.model.errors import HostLacks
from waypoint.processes.criu.rpc import Criu
from waypoint.setup.criu_install import install, installed

has_apt = pytest.mark.requires("apt-get")
pytestmark = [has_apt, pytest.mark.requires("network")]

UNREACHABLE = "http://127.0.0.1:9/debian"

# Installs, and dies when it has something to say that begins in this way.
KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from waypoint.setup.criu_install import install
def say(text):
    if text.startswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
install(Path(sys.argv[2]), say, mirror=sys.argv[4])
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, mirror: str) -> Path:
    """A home with a private CRIU."""
    place = tmp_path_factory.mktemp("installed") / "home"
    install(place, print, mirror=mirror)
    return place


@pytest.fixture
def damaged(home: Path) -> Iterator[Path]:
    """The same home with a library cut short."""
    library = next((home / "criu/lib").glob("libnet.so*"))
    os.truncate(library, 1000)
    yield home
    assert installed(home)


def kill_at(word: str, home: Path, mirror: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(ROOT), str(home), word, mirror], check=False)
    assert done.returncode == -signal.SIGKILL


def test_it_runs_with_its_own_loader_and_libraries(home: Path) -> None:
    program = home / "criu/bin/criu"
    assert Criu(program).version() >= (4, 2, 0)
    maps = subprocess.run([program, "--version"], env={"LD_DEBUG": "libs"}, capture_output=True, text=True, check=True)
    loaded = set(re.findall(r"calling init: (\S+)", maps.stderr))
    assert loaded
    assert all(path.startswith(str((home / "criu").resolve())) for path in loaded), loaded


def test_the_manifest_names_each_package_with_version_and_digest(home: Path) -> None:
    lines = (home / "criu/share/MANIFEST").read_text().splitlines()
    assert {"criu", "libc6"} <= {line.split()[0] for line in lines}
    assert all(re.fullmatch(r"\S+ \S+ \S+ [0-9a-f]{64}", line) for line in lines)
    for line in (home / "criu/share/FILES").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((home / "criu" / name).read_bytes()).hexdigest() == digest


def test_a_second_run_does_nothing(home: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in home.rglob("*")}
    said: list[str] = []
    assert install(home, said.append, mirror=UNREACHABLE) == home / "criu/bin/criu"
    assert said == []
    assert {path: path.lstat().st_mtime_ns for path in home.rglob("*")} == before


def test_a_damaged_one_is_replaced_and_only_then(damaged: Path, mirror: str) -> None:
    assert installed(damaged) is None
    with pytest.raises(HostLacks, match=r"Connection refused|Unable to connect"):
        install(damaged, print, mirror=UNREACHABLE)
    said: list[str] = []
    assert Criu(install(damaged, said.append, mirror=mirror)).version() >= (4, 2, 0)
    assert said[-1].startswith("installed CRIU 4.")
    assert len(list(damaged.iterdir())) == 2


def test_a_home_that_was_moved_gets_a_new_one(home: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-a", home, tmp_path / "moved"], check=True)
    assert installed(tmp_path / "moved") is None


def test_without_a_reachable_mirror_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(HostLacks, match=r"Connection refused|Unable to connect") as caught:
        install(tmp_path / "home", print, mirror=UNREACHABLE)
    assert caught.value.on == UNREACHABLE
    assert list(tmp_path.iterdir()) == []


def test_killed_at_any_moment_it_leaves_none_and_the_next_run_makes_it_whole(tmp_path: Path, mirror: str) -> None:
    home = tmp_path / "home"
    kill_while_downloading(home)
    for word in ("fetching", "trying"):
        kill_at(word, home, mirror)
        assert installed(home) is None
        assert not (home / "criu").exists()
    kill_at("installed", home, mirror)  # all was done, but not cleaned up
    assert installed(home) == home / "criu/bin/criu"
    os.unlink(home / "criu")
    install_twice(home, mirror)
    assert sorted(path.name for path in home.iterdir())[0] == "criu"
    assert len(list(home.iterdir())) == 2


def kill_while_downloading(home: Path) -> None:
    """Kill it in the middle of downloading: it takes apt along."""
    with socket.create_server(("127.0.0.1", 0)) as stuck:
        stuck.settimeout(PATIENCE_S)
        address = f"http://127.0.0.1:{stuck.getsockname()[1]}/debian"
        with subprocess.Popen([sys.executable, "-c", KILLED, str(ROOT), str(home), "never", address]) as process:
            asked, _ = stuck.accept()
            with asked:
                asked.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nit begins")
                assert apt_in(home), "it downloads"
                process.kill()
                wait_until(lambda: not apt_in(home), "apt-get has ended", PATIENCE_S)


def apt_in(home: Path) -> list[int]:
    """The processes of apt-get that work in the home."""
    found = [process.pid for process in processes() if any(str(home) in word for word in words_of(process.pid))]
    return [pid for pid in found if name_of(pid) == "apt-get"]


def install_twice(home: Path, mirror: str) -> None:
    """Several at once make one."""
    said: list[str] = []
    threads = [threading.Thread(target=install, args=(home, said.append), kwargs={"mirror": mirror}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert installed(home)
    assert len([line for line in said if line.startswith("installed")]) == 1


@pytest.mark.privileged
def test_on_a_full_disk_it_says_so_and_leaves_nothing(tmp_path: Path, mirror: str) -> None:
    def work() -> list[tuple[str, str, list[str]]]:
        mounts.mount("tmpfs", tmp_path, "tmpfs", 0, "size=1m")
        found = []
        for larger in ("62m", "600m"):
            with pytest.raises(HostLacks) as caught:
                install(tmp_path / "home", print, mirror=mirror)
            found.append((caught.value.said, caught.value.next_step, [path.name for path in tmp_path.iterdir()]))
            subprocess.run(["mount", "-o", f"remount,size={larger}", str(tmp_path)], check=True)
        install(tmp_path / "home", print, mirror=mirror)
        return found

    for said, next_step, left in in_own_process(work):
        assert re.search("No space left|enough free space|space", said), said
        assert next_step == "make room on that file system"
        assert left == []
