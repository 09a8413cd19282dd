"""The private CRIU is installed completely or not at all."""

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
from tests.processes.mirror import kept_mirror
from tests.processes.stages import in_own_process
from tests.processes_now import name_of, processes, words_of
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.storage import mounts
from waypoint.model.errors import HostLacks
from waypoint.processes.criu.rpc import Criu
from waypoint.setup.criu_install import install, installed
from waypoint.setup.debian_packages import find_mirror

has_apt = pytest.mark.requires("apt-get")
pytestmark = [pytest.mark.soak(part="setup"), has_apt, pytest.mark.requires("network")]

UNREACHABLE = "http://127.0.0.1:9/debian"

# A program that installs CRIU, and kills itself at the first message that begins with the given word.
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
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kept_mirror(find_mirror(), tmp_path_factory.mktemp("mirror")) as address:
        yield address


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, mirror: str) -> Path:
    """A home with a private CRIU."""
    place = tmp_path_factory.mktemp("installed") / "home"
    install(place, print, mirror=mirror)
    return place


@pytest.fixture
def damaged(home: Path) -> Iterator[Path]:
    """The same home with a truncated library; it is repaired after the test."""
    library = next((home / "criu/lib").glob("libnet.so*"))
    os.truncate(library, 1000)
    yield home
    assert installed(home)


def kill_at(word: str, home: Path, mirror: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(ROOT), str(home), word, mirror], check=False)
    assert done.returncode == -signal.SIGKILL


def test_the_private_criu_uses_its_own_loader_and_libraries(home: Path) -> None:
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


def test_a_second_installation_does_nothing(home: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in home.rglob("*")}
    said: list[str] = []
    assert install(home, said.append, mirror=UNREACHABLE) == home / "criu/bin/criu"
    assert said == []
    assert {path: path.lstat().st_mtime_ns for path in home.rglob("*")} == before


def test_a_damaged_installation_is_replaced(damaged: Path, mirror: str) -> None:
    assert installed(damaged) is None
    with pytest.raises(HostLacks, match=r"Connection refused|Unable to connect"):
        install(damaged, print, mirror=UNREACHABLE)
    said: list[str] = []
    assert Criu(install(damaged, said.append, mirror=mirror)).version() >= (4, 2, 0)
    assert said[-1].startswith("installed CRIU 4.")
    assert len(list(damaged.iterdir())) == 2


def test_a_moved_home_needs_a_new_installation(home: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-a", home, tmp_path / "moved"], check=True)
    assert installed(tmp_path / "moved") is None


def test_an_installation_without_a_mirror_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(HostLacks, match=r"Connection refused|Unable to connect") as caught:
        install(tmp_path / "home", print, mirror=UNREACHABLE)
    assert caught.value.on == UNREACHABLE
    assert list(tmp_path.iterdir()) == []


def test_a_killed_installation_leaves_nothing_usable_and_the_next_one_succeeds(tmp_path: Path, mirror: str) -> None:
    home = tmp_path / "home"
    for word in ("downloading", "trying"):
        kill_at(word, home, mirror)
        assert installed(home) is None
        assert not (home / "criu").exists()
    kill_at("installed", home, mirror)  # killed after the installation, before the cleanup
    assert installed(home) == home / "criu/bin/criu"
    os.unlink(home / "criu")
    install(home, print, mirror=mirror)
    assert sorted(path.name for path in home.iterdir())[0] == "criu"
    assert len(list(home.iterdir())) == 2


def test_an_installation_killed_while_downloading_ends_apt(tmp_path: Path, mirror: str) -> None:
    home = tmp_path / "home"
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
    install(home, print, mirror=mirror)
    assert len(list(home.iterdir())) == 2


def apt_in(home: Path) -> list[int]:
    found = [process.pid for process in processes() if any(str(home) in word for word in words_of(process.pid))]
    return [pid for pid in found if name_of(pid) == "apt-get"]


def test_parallel_installations_install_once(tmp_path: Path, mirror: str) -> None:
    said: list[str] = []
    threads = [
        threading.Thread(target=install, args=(tmp_path / "home", said.append), kwargs={"mirror": mirror})
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert installed(tmp_path / "home")
    assert len([line for line in said if line.startswith("installed")]) == 1
    assert len(list((tmp_path / "home").iterdir())) == 2


@pytest.mark.privileged
@pytest.mark.parametrize("size", ["1m", "62m"])
def test_an_installation_on_a_full_disk_is_an_error_and_leaves_nothing(size: str, tmp_path: Path, mirror: str) -> None:
    def work() -> tuple[str, str, list[str]]:
        mounts.mount("tmpfs", tmp_path, "tmpfs", 0, f"size={size}")
        with pytest.raises(HostLacks) as caught:
            install(tmp_path / "home", print, mirror=mirror)
        left = [path.name for path in tmp_path.iterdir()]
        subprocess.run(["mount", "-o", "remount,size=600m", str(tmp_path)], check=True)
        install(tmp_path / "home", print, mirror=mirror)
        return caught.value.said, caught.value.next_step, left

    said, next_step, left = in_own_process(work)
    assert re.search("No space left|enough free space|space", said), said
    assert next_step == "free some space on that file system"
    assert left == []
