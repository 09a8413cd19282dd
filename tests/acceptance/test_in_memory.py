"""With `setup --hot-memory` images of processes are born in memory, and come to the disk by themselves; what the end of
the machine costs is told by name.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.sessions import inside
from tests.cli.conftest import daemon_pid
from tests.homes import Home, open_home
from tests.session.pauses import Pauses
from tests.waiting import wait_until
from waypoint.capture.steps import SettleStep

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]


NEXT_S = 20.0
"""Until a supervisor that has what others leave of the processors has started the next daemon."""


@pytest.fixture
def home() -> Iterator[Home]:
    with open_home("memory", settings={"hot_memory_bytes": 64 << 20}) as home:
        home.must("shell", "-d", "main", "--cwd", "/srv")
        yield home


def memory(home: Home) -> Path:
    return Path(f"/dev/shm/waypoint-{home.id}-hot")


def capture_of(home: Home, name: str) -> str:
    found: dict[str, Any] = home.must("show", name, "--json").json()
    return str(found["capture"])


def on_disk(home: Home, capture: str) -> Path:
    return home.path / "hot" / capture / "images"


def in_memory(home: Home, name: str) -> bool:
    """Whether the images are there, and nowhere else."""
    capture = capture_of(home, name)
    born = memory(home) / capture / "images"
    assert born.exists() is not on_disk(home, capture).exists()
    return born.exists()


def rows(home: Home) -> dict[str, dict[str, Any]]:
    return {row["capability"]: row for row in home.cli("doctor", "--json").json()}


def picture(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mode, path.stat().st_uid) for path in folder.iterdir()}


def measured(images: dict[str, tuple[bytes, int, int]]) -> int:
    return sum(len(content) for content, _, _ in images.values())


def kill_daemon(home: Home) -> None:
    stopped = daemon_pid(home)
    os.kill(stopped, signal.SIGKILL)
    wait_until(lambda: daemon_pid(home) != stopped, "the next daemon is there", NEXT_S)


def test_images_are_in_memory_until_the_daemon_stops_and_then_on_the_disk(home: Home) -> None:
    inside(home, "main", "kept=17; sleep 1000 &")
    home.must("checkpoint", "gone")
    home.must("checkpoint", "a")
    a = capture_of(home, "a")
    content = picture(memory(home) / a / "images")
    assert "inventory.img" in content
    assert (memory(home).stat().st_mode & 0o777, memory(home).stat().st_uid) == (0o700, 0)
    of_gone = home.must("du", "gone", "--json").json()["holders"][0]["processes_bytes"]
    assert of_gone > measured(content)
    home.must("rm", "gone")
    freed = home.must("gc", "--keep-operations", "0s", "--json").json()["freed_bytes"]
    assert freed >= measured(content), "what is in memory counts"
    assert os.listdir(memory(home)) == [a]
    assert in_memory(home, "a")
    used = home.must("du", "--json").json()
    assert used["memory_bytes"] > 0
    home.must("layer", "attach", "a", "model=/etc/hostname")
    attached = capture_of(home, "a")
    assert not in_memory(home, "a"), "its images are not those of the first a"

    home.must("daemon", "stop")

    assert os.listdir(memory(home)) == []
    assert picture(on_disk(home, a)) == picture(on_disk(home, attached)) == content
    home.must("restore", "a", "-b", "main")
    assert inside(home, "main", "echo $kept; jobs %1 > j; cut -c1-3 j") == "17\n[1]\n"
    assert home.must("du", "--json").json()["memory_bytes"] > 0, "what was on main is kept"
    inside(home, "main", "exec 9<>/dev/shm/x; head -c 70M /dev/zero >&9; rm /dev/shm/x")
    home.must("checkpoint", "large")
    assert not in_memory(home, "large")


def test_a_killed_daemon_leaves_them_and_what_goes_with_the_machine_is_told_by_name(home: Home, tmp_path: Path) -> None:
    inside(home, "main", "kept=17")
    home.must("checkpoint", "stored", "--wait")
    home.must("checkpoint", "lost")
    stored, lost = capture_of(home, "stored"), capture_of(home, "lost")
    kill_daemon(home)
    assert [one["kept_in"] for one in home.must("log", "--json").json()] == ["memory", "store"]
    assert home.must("log").stdout.splitlines()[0].startswith(f"{lost[:12]} (lost, main) live (in memory) ")
    home.must("fork", "lost", "copy")
    assert inside(home, "copy", "echo $kept") == "17\n"
    for branch in ("main", "copy"):
        home.must("stop", branch)
    # As a daemon leaves it that is killed before it removes them, and as one that is killed in the middle.
    shutil.copytree(memory(home) / stored / "images", on_disk(home, stored))
    on_disk(home, lost).with_name(".images").mkdir()
    kill_daemon(home)
    assert os.listdir(memory(home)) == [lost]

    config, note = home.path / "config.json", home.path / "machine.json"
    config.write_text(config.read_text().replace('"durable_after_s": null', '"durable_after_s": 0'))
    shutil.copytree(memory(home) / lost, tmp_path / lost)
    shutil.rmtree(memory(home))  # as a machine that goes down does; and somebody else is there first
    shutil.copytree(tmp_path, memory(home))
    os.chown(memory(home), 65534, 65534)
    note.write_text(re.sub('"boot":"[^"]*"', '"boot":"another"', note.read_text()))
    kill_daemon(home)

    assert home.must("show", "lost", "--json").json()["kept_in"] == "torn"
    told = rows(home)
    store = told["the store of this home"]
    assert (store["state"], store["why"]) == ("ok", "not encrypted")  # and what is put into it is no damage
    assert told["images in memory"]["why"] == f"none: {memory(home)} is somebody else's"
    assert told["images in memory"]["state"] == "degraded"
    assert told["captures lost with the machine's memory"]["why"] == f"lost, {lost[:12]}"
    refused = home.cli("restore", "lost", "--new", "again")
    assert refused.code == 10
    assert "was in memory alone when the machine went down" in refused.stderr
    home.must("restore", "lost", "--new", "again", "--tier", "respawn")
    assert inside(home, "again", "echo $kept") == "17\n"
    home.must("restore", "stored", "--new", "whole")
    assert inside(home, "whole", "echo $kept") == "17\n"
    home.must("checkpoint", "next", "-b", "again", "--wait")
    assert home.must("show", "next", "--json").json()["durable"], "though it goes on from what is lost"
    assert not home.must("show", "lost", "--json").json()["durable"], "it would seem whole"
    shutil.rmtree(memory(home))


@contextlib.contextmanager
def small_place(folder: Path, options: str) -> Iterator[None]:
    """A tmpfs in place of a folder of a home whose daemon does not run; nor may it when this ends."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


def test_a_full_memory_a_full_disk_and_kills_on_the_way_to_it_cost_nothing(tmp_path: Path) -> None:
    pauses = Pauses(tmp_path)
    with pauses.open_home("settling") as home, contextlib.ExitStack() as held:
        config = json.loads((home.path / "config.json").read_text())
        (home.path / "config.json").write_text(
            json.dumps({**config, "hot_memory_bytes": 64 << 20, "settle_after_s": 0.3})
        )
        memory(home).mkdir(mode=0o700, exist_ok=True)
        held.enter_context(small_place(memory(home), "size=1g"))
        held.enter_context(small_place(home.path / "hot", "size=16m"))
        held.callback(home.must, "daemon", "stop")
        home.must("shell", "-d", "main", "--cwd", "/srv")
        inside(home, "main", "kept=17")
        with pauses.armed(*SettleStep) as armed:
            home.must("checkpoint", "a")
            a = capture_of(home, "a")
            log = home.path / "daemon.log"
            wait_until(lambda: f"the images of capture {a[:12]} stay" in log.read_text(), "the disk is found full")
            assert in_memory(home, "a")
            used = os.statvfs(memory(home))
            remount(memory(home), f"nr_inodes={used.f_files - used.f_ffree + 10}")
            home.must("checkpoint", "b")
            assert not in_memory(home, "b"), "CRIU has found no room for its files there"
            assert home.must("show", "b", "--json").json()["tier"] == "live"
            assert "capture of main, its images in memory: " in log.read_text()
            content = picture(memory(home) / a / "images")

            remount(home.path / "hot", "size=1g")

            assert armed.wait() == SettleStep.ONE_COPIED
            assert len(os.listdir(home.path / "hot" / a / ".images")) == 1
            kill_daemon(home)
            assert armed.wait() == SettleStep.IN_PLACE, "the next daemon begins anew"
            assert picture(memory(home) / a / "images") == picture(on_disk(home, a)) == content
            kill_daemon(home)
        assert os.listdir(memory(home)) == []
        assert picture(on_disk(home, a)) == content
        for name in ("a", "b"):
            home.must("restore", name, "--new", f"of-{name}")
            assert inside(home, f"of-{name}", "echo $kept") == "17\n"
        remount(memory(home), "nr_inodes=0")
        home.must("checkpoint", "c")
        settled = on_disk(home, capture_of(home, "c"))
        wait_until(settled.exists, "a daemon without other work brings them to the disk")
        wait_until(lambda: os.listdir(memory(home)) == [], "they are used from there")
        home.must("stop", "--all", "--discard")


def test_who_sets_the_room_has_it_at_once(home: Home) -> None:
    home.must("setup", "--hot-memory", "1K", "--hot-budget", "5G")
    home.must("checkpoint", "small")
    assert not in_memory(home, "small")
    home.must("setup", "--hot-memory", "64M")
    home.must("checkpoint", "in-memory")
    assert in_memory(home, "in-memory")
