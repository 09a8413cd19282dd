"""What homes leave behind whose processes were killed, or whose folders were removed."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.homes import Home
from tests.places import RUNTIME, home_id
from tests.waiting import PATIENCE_S, wait_until
from waypoint.egress import keeper
from waypoint.linux.storage import files
from waypoint.linux.tasks import lock_holder, procfs

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root")]

Router = tuple[Path, "subprocess.Popen[bytes]"]


@pytest.fixture
def left_behind(tmp_path: Path) -> Iterator[Callable[[str], Router]]:
    """Makes the runtime folder of a home in `tmp_path`, whose pasta is a `sleep`, without any other process."""
    with subprocess.Popen(["sleep", "1000"]) as pasta:
        folders = []

        def make(name: str) -> Router:
            folder = RUNTIME / home_id(tmp_path / name)
            folders.append(folder)
            folder.mkdir(mode=0o711, parents=True)
            (folder / "home").write_bytes(os.fsencode(tmp_path / name))
            note = keeper.note_of(pasta.pid, procfs.start_ticks(pasta.pid), ipv6=True)
            (folder / keeper.NOTE).write_text(note)
            return folder, pasta

        yield make
        pasta.kill()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("gone", ["process", "folder", "router"])
def test_a_router_ends_with_the_last_process_or_the_folder_of_its_home(
    left_behind: Callable[[str], Router], tmp_path: Path, gone: str
) -> None:
    home = tmp_path / "h"
    home.mkdir()
    folder, pasta = left_behind("h")
    start = procfs.start_ticks(pasta.pid)
    notes = ((folder / keeper.NOTE).read_text(),)
    assert not keeper.is_needed(str(home), "/nonexistent", notes)  # no process
    lock = files.lock(str(folder / "supervisor.lock"), wait=False)
    try:
        lock_holder.sign(lock)
        assert keeper.is_needed(str(home), "/nonexistent", notes)
        keeping = threading.Thread(target=keeper.keep, args=(str(home), "/nonexistent", pasta.pid, start, 0.01))
        keeping.start()
        if gone == "process":
            os.ftruncate(lock, 0)
        elif gone == "folder":
            home.rmdir()
        else:
            (folder / keeper.NOTE).write_text(keeper.note_of(1, 1, ipv6=True))
        keeping.join(PATIENCE_S)
        assert not keeping.is_alive()
        assert pasta.wait(PATIENCE_S) == -9
    finally:
        os.close(lock)


def test_the_next_daemon_removes_what_removed_homes_have_left(
    home: Home, left_behind: Callable[[str], Router], tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    kept = [left_behind(name)[0] for name in ("there", "in-use", "young")]
    (kept[2] / "home").unlink()
    folder, pasta = left_behind("vanished")
    lock = files.lock(str(kept[1] / "supervisor.lock"), wait=False)
    try:
        home.must("daemon", "stop")
        home.must("ps")
        wait_until(lambda: not folder.exists(), "the folder is removed")
        assert pasta.wait(PATIENCE_S) == -9
        assert [one.exists() for one in kept] == [True, True, True]
    finally:
        os.close(lock)
