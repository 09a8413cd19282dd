"""Limits that are checked before a capture."""

import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from waypoint.capture import bounds
from waypoint.capture.layers.hot_memory import HotMemory
from waypoint.capture.layers.layer import Area
from waypoint.linux.storage import filesystem
from waypoint.linux.tasks import procfs
from waypoint.model.errors import CannotCapture, Failed
from waypoint.model.records import Caller
from waypoint.records.callers import asked_by
from waypoint.upper.contract import Outlook

MIB = 1 << 20
WITHIN, SOMEBODY, ROOT = Caller(branch="main"), Caller(uid=1000), Caller(uid=0)


@pytest.fixture
def subject() -> Any:
    """A fake session whose processes are this test process, counted twice."""
    facts = SimpleNamespace(init_pid=os.getpid(), branch="main")
    return SimpleNamespace(processes=lambda: [os.getpid(), os.getpid()], facts=facts)


def area_with_floor(home: Path, floor_bytes: int) -> Area:
    """Return the area of a fake home whose disk must keep `floor_bytes` free."""
    outlook = Outlook(0, 0, floor_bytes=floor_bytes)
    pool: Any = SimpleNamespace(outlook=lambda: outlook)
    hot: Any = SimpleNamespace(folder=home, memory_area=HotMemory(home / "memory"))
    return Area(pool, hot)


def test_open_files_are_counted() -> None:
    before = procfs.count_open_files(os.getpid())
    assert before == len(procfs.open_files(os.getpid()))
    held = [os.dup(0) for _ in range(50)]
    assert procfs.count_open_files(os.getpid()) == before + 50
    for fd in held:
        os.close(fd)
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    assert procfs.count_open_files(child) == procfs.own_bytes(child) == 0


def test_too_many_open_files_are_refused(subject: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * procfs.count_open_files(os.getpid())
    for most, tier in ((count, None), (count, "live"), (count - 1, "files")):
        monkeypatch.setattr(bounds, "MAX_OPEN_FILES", most)
        bounds.check(area_with_floor(tmp_path, 1), subject, tier)  # type: ignore[arg-type]
    for tier in (None, "live", "respawn"):
        with pytest.raises(CannotCapture, match=f"the processes have more than {count - 1} open files") as caught:
            bounds.check(area_with_floor(tmp_path, 1), subject, tier)  # type: ignore[arg-type]
        assert caught.value.next_step == "end some of the processes, or capture without processes: --tier files"


@pytest.mark.parametrize("caller", [WITHIN, SOMEBODY, ROOT])
def test_only_root_may_fill_the_disk_with_memory(subject: Any, tmp_path: Path, caller: Caller) -> None:
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held, asked_by(caller):
        held.write(b"x" * (64 * MIB))
        free, needed = filesystem.free_bytes(tmp_path), 2 * procfs.own_bytes(os.getpid())
        assert needed > 128 * MIB
        bounds.check(area_with_floor(tmp_path, free - needed - 256 * MIB), subject, "live")
        bounds.check(area_with_floor(tmp_path, free - 96 * MIB), subject, "respawn")
        if caller == ROOT:
            bounds.check(area_with_floor(tmp_path, 2 * free), subject, "live")
        else:
            with pytest.raises(Failed, match=r"No space left on device: after saving .* MiB of memory"):
                bounds.check(area_with_floor(tmp_path, free - 96 * MIB), subject, "live")
