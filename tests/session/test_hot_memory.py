"""Captures are written to memory, then moved to the disk. They are whole after a kill at any moment; after a reboot,
what was lost is reported.
"""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.answers import unusual
from tests.chaos import victims
from tests.homes import MIB, open_home
from tests.session import ledger
from tests.session.transactions import CHANGED, PausableHome, say
from tests.waiting import wait_until
from waypoint.capture.layers.hot_memory import HotMemory, unmount
from waypoint.capture.steps import Step
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2", "idmapped")]


def images_of(home: Path, name: str) -> Path:
    return home / "hot" / Client(home).history.show(name).capture / "images"


def empty(home: Path) -> None:
    """Wait until earlier captures are on the disk, so that the next one is moved next."""
    wait_until(lambda: not list((home / "hot/.memory").iterdir()), "nothing is in memory")


def is_mounted(home: Path) -> bool:
    return os.path.ismount(home / "hot/.memory")


@pytest.mark.parametrize("step", [Step.COPIED, pytest.param(Step.SWITCHED, marks=pytest.mark.soak(part="faults"))])
def test_a_capture_is_whole_while_it_is_moved_and_after_everything_is_killed_meanwhile(
    w: PausableHome, step: Step
) -> None:
    client, home = w.client, w.home
    client.session("w").exec("echo kept > /dev/shm/kept")
    empty(home.path)
    with w.pauses.armed(step) as armed:
        client.session("w").checkpoint("moved", tier="live")
        images = images_of(home.path, "moved")
        assert armed.wait() == step
        assert images.is_symlink() == (step == Step.COPIED)
        client.fork("moved", "during")
        assert say(client, "during") == CHANGED
        for part in ("supervisor", "daemon", "launcher"):
            for pid in victims.pids(home, part):
                os.kill(pid, signal.SIGKILL)
        assert is_mounted(home.path)
    client.fork("moved", "after")  # starts a daemon
    assert say(client, "after") == CHANGED
    empty(home.path)
    assert not images.is_symlink()
    client.fork("moved", "later")
    assert say(client, "later") == CHANGED
    assert client.session("later").exec("cat /dev/shm/kept").output == b"kept\n"
    ledger.check(home)


@pytest.mark.soak(part="faults")
def test_a_capture_can_be_removed_evicted_and_undone_while_it_is_moved(w: PausableHome) -> None:
    client, home = w.client, w.home
    for verb in (["rm", "moved"], ["undo", "-b", "w"], ["gc", "--keep-operations", "0s"], ["evict", "moved"]):
        empty(home.path)
        with w.pauses.armed(Step.COPIED) as armed:
            client.session("w").checkpoint("moved", tier="live", force=True, anew=True)
            assert armed.wait() == Step.COPIED
            if verb[0] == "evict":
                home.must("checkpoint", "moved", "-b", "w", "--wait", "--force")
            with home.background(*verb) as command:
                armed.go_on()
                assert command.wait(60) == 0
        empty(home.path)
        ledger.check(home)
    client.fork("moved", "evicted")
    assert say(client, "evicted") == CHANGED


def test_after_a_reboot_a_capture_that_was_only_in_memory_is_reported_and_its_files_come_back(w: PausableHome) -> None:
    client, home = w.client, w.home
    empty(home.path)
    with w.pauses.armed(Step.COPIED) as armed:
        client.session("w").checkpoint("lost", tier="live")
        assert armed.wait() == Step.COPIED
        with subprocess.Popen(["true"]) as nothing:
            victims.reboot(home, nothing)
    assert [one["code"] for one in unusual(client.history.show("lost").degraded)] == ["processes-lost"]
    refused = home.cli("restore", "lost", "--new", "whole", "--json")
    assert (refused.code, refused.json()["error"]["code"]) == (5, "images-lost")
    home.must("restore", "lost", "-b", "whole", "--only", "files")  # as the error advises
    assert say(client, "whole") == "changed 0"  # the file, and a new shell
    client.fork("base", "other")  # it was on the disk
    ledger.check(home)


def test_a_daemon_that_stops_leaves_everything_on_the_disk(w: PausableHome) -> None:
    w.client.session("w").checkpoint("flushed", tier="live")
    images = images_of(w.home.path, "flushed")
    assert is_mounted(w.home.path)
    w.home.must("daemon", "stop")
    assert not is_mounted(w.home.path)
    assert not images.is_symlink()
    w.client.fork("flushed", "again")
    assert say(w.client, "again") == CHANGED


def test_a_capture_that_does_not_fit_is_written_to_the_disk() -> None:
    with open_home(options=["--hot-memory", "1M"]) as home:
        session = Client(home.path).start("main")
        assert session.checkpoint("large", tier="live").tier == "live"
        assert not images_of(home.path, "large").is_symlink()
        assert home.must("du", "--json").json()["hot_memory_bytes"] == MIB


def test_memory_is_reserved_once_and_found_again(tmp_path: Path) -> None:
    area = tmp_path / "memory"
    first, second = HotMemory(area), HotMemory(area)
    try:
        first.open(8 * MIB, lambda work: work(), str)
        assert area.stat().st_mode & 0o7777 == 0o700
        assert first.reserve("one", 5 * MIB)
        assert not first.reserve("two", 5 * MIB)
        first.release("one")
        assert first.reserve("two", 5 * MIB)
        (area / "two").write_bytes(b"x" * 5 * MIB)
        first.release("two")
        first.close()  # not empty: it stays
        second.open(16 * MIB, lambda work: work(), str)
        assert (second.list(), second.used_bytes()) == (["two"], 5 * MIB)
        assert second.reserve("three", 10 * MIB)
        (area / "two").unlink()
        second.close()
        assert not os.path.ismount(area)
    finally:
        unmount(area)


def test_memory_that_restores_cannot_read_is_not_used(tmp_path: Path) -> None:
    area = HotMemory(tmp_path / "memory")
    try:
        area.open(8 * MIB, lambda work: work(), lambda: "it cannot be idmapped")
        assert not area.reserve("one", 1)
        assert area.why_not == "it cannot be idmapped"
    finally:
        area.close()
