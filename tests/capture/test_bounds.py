"""What is looked at before a capture is begun."""

import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.store.test_names_store import capture_of, row_of
from waypoint.capture import bounds
from waypoint.capture.layers.layer import Area
from waypoint.capture.layers.programs import PROGRAMS
from waypoint.capture.layers.terminal import TERMINAL
from waypoint.linux.storage import filesystem
from waypoint.linux.tasks import procfs, removed
from waypoint.model.errors import CannotCapture, Failed, StoreDamaged
from waypoint.model.records import Caller, ProgramsLayer, Tier
from waypoint.store.callers import asked_by
from waypoint.upper.contract import Outlook

MIB = 1 << 20
WITHIN, SOMEBODY, ROOT = Caller(branch="main"), Caller(uid=1000), Caller(uid=0)


@pytest.fixture
def subject() -> Any:
    """This process as a session."""
    facts = SimpleNamespace(init_pid=os.getpid(), branch="main")
    return SimpleNamespace(processes=lambda: [os.getpid(), os.getpid()], facts=facts)


def area_with_floor(home: Path, floor_bytes: int) -> Any:
    """A home on whose disk so much is to be left."""
    outlook = Outlook(0, 0, floor_bytes=floor_bytes)
    pool: Any = SimpleNamespace(outlook=lambda: outlook)
    hot: Any = SimpleNamespace(folder=home)
    return Area(pool, hot)


def test_open_files_are_counted_as_they_are() -> None:
    before = procfs.count_open_files(os.getpid())
    assert before == len(procfs.open_files(os.getpid()))
    held = [os.dup(0) for _ in range(50)]
    assert procfs.count_open_files(os.getpid()) == before + 50
    for fd in held:
        os.close(fd)
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    assert procfs.count_open_files(child) == procfs.own_bytes(child) == 0


def test_more_open_files_than_any_program_has_are_refused(
    subject: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * procfs.count_open_files(os.getpid())
    for most, tier in ((count, None), (count, "live"), (count - 1, "files")):
        monkeypatch.setattr(bounds, "MOST_OPEN_FILES", most)
        bounds.check(area_with_floor(tmp_path, 1), subject, tier, 0)  # type: ignore[arg-type]
    for tier in (None, "live", "respawn"):
        with pytest.raises(CannotCapture, match=f"they have more than {count - 1} open files") as caught:
            bounds.check(area_with_floor(tmp_path, 1), subject, tier, 0)  # type: ignore[arg-type]
        assert caught.value.next_step == "end some; or keep the files alone: --tier files"


@pytest.mark.parametrize("caller", [WITHIN, SOMEBODY, ROOT])
def test_only_root_fills_the_disk_with_memory(
    subject: Any, tmp_path: Path, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is free is said here: other tests use the same disk, and the same shared memory."""

    def check(room: int, tier: Tier) -> None:
        free = {tmp_path: room + 7 * MIB}
        monkeypatch.setattr(filesystem, "free_bytes", lambda path: free.get(path) or filesystem.total_bytes(path))
        bounds.check(area_with_floor(tmp_path, 7 * MIB), subject, tier, 0)

    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held, asked_by(caller):
        held.write(b"x" * (64 * MIB))
        needed = 2 * procfs.own_bytes(os.getpid())
        assert needed > 128 * MIB
        check(needed + MIB, "live")
        check(0, "respawn")
        if caller == ROOT:
            check(0, "live")
        else:
            with pytest.raises(Failed, match=r"No space left on device: with .* MiB of memory and deleted files kept"):
                check(needed - MIB, "live")


@pytest.mark.privileged
@pytest.mark.parametrize("kind", ["removed", "shared memory"])
def test_what_is_only_mapped_needs_room_too(subject: Any, tmp_path: Path, kind: str) -> None:
    size = 64 * MIB
    fd = -1
    if kind == "removed":
        fd = os.open(tmp_path / "removed", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, size)
    with mmap.mmap(fd, size, flags=mmap.MAP_SHARED) as held:
        if kind == "removed":
            with open(os.devnull) as nothing:  # the mapping of Python's has a descriptor of its own
                for number in (number for number, path in procfs.open_files(os.getpid()).items() if "/removed" in path):
                    os.dup2(nothing.fileno(), number)
            os.close(fd)
            (tmp_path / "removed").unlink()
        else:
            held.write(b"x" * size)
        assert size <= removed.file_bytes([os.getpid(), os.getpid()], size + MIB) < size + 8 * MIB


@pytest.mark.parametrize("kind", ["removed", "memfd"])
def test_files_that_are_open_without_a_name_need_room_once_each(
    subject: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 200 MiB of memory in both processes. What is free is said here: other tests use the same disk."""
    path, size = tmp_path / "removed", 512 * MIB
    monkeypatch.setattr(procfs, "own_bytes", lambda _pid: 100 * MIB)

    def check(room: int, most_deleted: int = size + MIB, tier: Tier = "live") -> None:
        monkeypatch.setattr(Area, "room_bytes", lambda _area: room)
        bounds.check(area_with_floor(tmp_path, 0), subject, tier, most_deleted)

    fd = os.open(path, os.O_RDWR | os.O_CREAT) if kind == "removed" else os.memfd_create("x")
    with open(fd, "wb") as held, open(os.dup(fd), "rb"), asked_by(SOMEBODY):
        os.posix_fallocate(fd, 0, size)
        held.truncate(8 * size)  # a hole needs no room
        if kind == "removed":
            check(612 * MIB)
            path.unlink()
            check(612 * MIB, size - MIB)  # by what profiles say it is not kept
            check(356 * MIB)  # there is no room for it, so CRIU is not to keep it
        with pytest.raises(Failed, match="of memory and deleted files kept"):
            check(612 * MIB)
        check(356 * MIB, tier="respawn")
        check(1000 * MIB)


def test_what_an_import_has_put_in_the_place_of_a_note_is_not_read_whole(tmp_path: Path) -> None:
    made = capture_of(row_of("main"))
    programs = ProgramsLayer(size_bytes=0, programs=[], lost=[])
    origin = msgspec.structs.replace(made, layers=msgspec.structs.replace(made.layers, programs=programs))
    hot: Any = SimpleNamespace(terminal=lambda _: tmp_path, programs=lambda _: tmp_path / "programs.json")
    pool: Any = None
    area = Area(pool, hot)
    for name in ("ring", "exec.json", "programs.json"):
        (tmp_path / name).write_bytes(b'{"programs": []}')
    TERMINAL.check(area, origin, 1, ())
    PROGRAMS.read(area, origin)
    for name in ("exec.json", "typed-ahead", "programs.json"):
        with (tmp_path / name).open("ab") as file:
            file.truncate(1 << 40)
        with pytest.raises(StoreDamaged, match="has more than"):
            PROGRAMS.read(area, origin) if name == "programs.json" else TERMINAL.check(area, origin, 1, ())
        (tmp_path / name).write_bytes(b"{}")
