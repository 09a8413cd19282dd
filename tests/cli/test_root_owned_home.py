"""`setup` and the daemon refuse a home that a user other than root could replace or write to, as that user could become
root through its config.json.
"""

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.supervised_home import SupervisedHome, ending, supervised_home
from tests.homes import OPEN, Home
from tests.places import make_temp_root
from tests.waiting import wait_until
from waypoint.linux.storage.files import read_own
from waypoint.linux.storage.ownership import check_home
from waypoint.linux.tasks import lock_holder
from waypoint.model.errors import HostLacks

pytestmark = pytest.mark.privileged
USER = 12345


def give(path: Path) -> None:
    os.chown(path, USER, USER, follow_symlinks=False)


def link(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"whose-{os.getpid()}-", dir=make_temp_root()) as folder:
        (Path(folder) / "above/home").mkdir(parents=True)
        yield Path(folder)


def move_behind_link(place: Path, to: str, target: str) -> Path:
    (place / to).parent.mkdir(exist_ok=True)
    (place / "above/home").rename(place / to)
    return link(place / "above/home", target)


def sticky_of_theirs(place: Path) -> None:
    (place / "above").chmod(0o1777)
    give(place / "above")


def file_of_theirs(place: Path) -> None:
    (place / "above/home/names.db").touch()
    give(place / "above/home/names.db")


def link_through_theirs(place: Path) -> None:
    move_behind_link(place, "theirs/home", "../theirs/home")
    give(place / "theirs")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "the home is theirs": lambda place: give(place / "above/home"),
    "a folder above is theirs": lambda place: give(place / "above"),
    "they may write to the home": lambda place: (place / "above/home").chmod(0o775),
    "all may write to the home, which is sticky": lambda place: (place / "above/home").chmod(0o1777),
    "a group may write to a folder above": lambda place: (place / "above").chmod(0o775),
    "a sticky folder above is theirs": sticky_of_theirs,
    "a file in the home is theirs": file_of_theirs,
    "a link to the home is theirs": lambda place: give(move_behind_link(place, "true", "../true")),
    "root's link leads through a folder of theirs": link_through_theirs,
}
OWN: dict[str, Callable[[Path], object]] = {
    "everything is root's": lambda _: None,
    "a folder above is sticky, as /tmp is": lambda place: (place / "above").chmod(0o1777),
    "root's relative link": lambda place: move_behind_link(place, "true", "../true"),
    "root's absolute link": lambda place: move_behind_link(place, "true", f"{place}/true"),
    "the home does not exist": lambda place: (place / "above/home").rmdir(),
}


@pytest.mark.parametrize("arrange", FOREIGN.values(), ids=FOREIGN)
def test_a_home_that_others_could_replace_is_refused(place: Path, arrange: Callable[[Path], object]) -> None:
    arrange(place)
    with pytest.raises(HostLacks):
        check_home(str(place / "above/home"))


@pytest.mark.parametrize("arrange", OWN.values(), ids=OWN)
def test_a_home_in_roots_directories_is_accepted(place: Path, arrange: Callable[[Path], object]) -> None:
    arrange(place)
    before = len(os.listdir("/proc/self/fd"))
    check_home(str(place / "above/home"))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("arrange", [give, lambda path: link(path, "/etc/hostname"), lambda path: os.mkfifo(path)])
def test_settings_are_read_only_from_a_file_of_root(place: Path, arrange: Callable[[Path], object]) -> None:
    path = place / "config.json"
    if arrange is give:
        path.write_text("{}")
    arrange(path)
    with pytest.raises(OSError, match=re.escape(str(path))):
        read_own(str(path))


@pytest.fixture
def bare(place: Path) -> Iterator[Home]:
    home = Home(place / "above/h")
    OPEN.add(home)
    yield home
    (place / "above").chmod(0o755)
    os.chown(place / "above", 0, 0)
    home.must("setup", "--remove", "--yes")
    OPEN.discard(home)


def test_setup_refuses_a_directory_of_a_user(bare: Home) -> None:
    bare.path.mkdir(mode=0o755)
    give(bare.path)
    done = bare.cli("setup")
    assert done.code == 3
    assert f"{bare.path} belongs to user {USER}" in done.stderr
    assert "next: use a folder that only root can change" in done.stderr
    assert os.listdir(bare.path) == []
    bare.path.rmdir()


@pytest.mark.soak(part="setup")
def test_setup_removes_the_access_of_others_to_a_directory_of_root(bare: Home) -> None:
    bare.path.mkdir(mode=0o755)
    assert f"closed {bare.path} to other users" in bare.must("setup").stderr
    assert stat.S_IMODE(bare.path.stat().st_mode) == 0o700


@pytest.mark.soak(part="setup")
def test_no_daemon_starts_on_files_that_a_user_has_placed(bare: Home, place: Path) -> None:
    """The commands in the next step of each message are executed."""
    bare.must("setup")
    with ending(
        lock_holder.signed_by(str(bare.runtime / "supervisor.lock"))
    ):  # the supervisor writes to the log when it ends
        bare.must("daemon", "stop")
    log = (bare.path / "daemon.log").read_bytes()
    for words in (["setup"], ["setup", "--check"], ["ps"], ["doctor"]):
        (place / "above").chmod(0o777)
        done = bare.cli(*words)
        assert (done.code, "others may write to" in done.stderr) == (3, True), done
        assert f"\n  next: remove this permission: chmod go-w {place / 'above'}\n" in done.stderr
        subprocess.run(shlex.split(done.stderr.partition("remove this permission: ")[2]), check=True)
        assert stat.S_IMODE((place / "above").stat().st_mode) == 0o755
    assert (bare.path / "daemon.log").read_bytes() == log
    bare.must("ps")
    bare.must("daemon", "stop")
    planted = json.loads((bare.path / "config.json").read_text()) | {"owner_uid": USER, "trusted_uid": USER}
    kept = bare.path.rename(place / "kept")
    bare.path.mkdir(mode=0o700)
    (bare.path / "config.json").write_text(json.dumps(planted))
    give(bare.path)
    done = bare.cli("ps")
    assert (done.code, f"{bare.path} belongs to user {USER}" in done.stderr) == (3, True), done
    assert not bare.runtime.joinpath("api.sock").exists()
    shutil.rmtree(bare.path)
    kept.rename(bare.path)
    give(place / "above")
    done = bare.cli("ps")
    os.chown(place / "above", 0, 0)
    assert (done.code, "next: use a folder that only root can change" in done.stderr) == (3, True), done
    moved = Home(place / "moved")
    OPEN.add(moved)
    bare.path.rename(moved.path)
    moved.must("setup")
    moved.must("ps")
    moved.must("setup", "--remove", "--yes")
    OPEN.discard(moved)


def test_each_daemon_checks_the_owner_again(place: Path) -> None:
    with supervised_home(place / "above/h") as home:
        home.start()
        daemon, supervisor = home.daemon_pid(), home.supervisor_pid()
        (place / "above").chmod(0o777)
        with ending(supervisor):
            os.kill(daemon, signal.SIGKILL)
        assert isinstance(home, SupervisedHome)
        wait_until(lambda: "others may write to" in home.log(), "the log has the reason")
