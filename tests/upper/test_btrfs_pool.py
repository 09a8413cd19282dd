"""Behaviour of the driver `btrfs` that other drivers do not have."""

import errno
import mmap
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.upper.pool_homes import MIB, POOL_HOMES, SIZES, used_bytes
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.storage import btrfs
from waypoint.upper import btrfs_pool
from waypoint.upper.contract import GrowthOutcome, Pool
from waypoint.upper.loop_pool import LoopPool
from waypoint.upper.open_pool import open_pool

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs")]

_NUMBER = struct.Struct("Q")
FILES = 16


@pytest.fixture
def pool(corner: Path) -> Iterator[Pool]:
    pool = open_pool(corner, "btrfs", SIZES)
    yield pool
    pool.close()


def count_into(tree: str) -> None:
    """Write increasing numbers into all files in turn, for ever: half by write(2), half through a memory map."""
    files = [os.open(f"{tree}/{number}", os.O_RDWR | os.O_CREAT) for number in range(FILES)]
    for file in files:
        os.ftruncate(file, 8)
    maps = [mmap.mmap(file, 8) for file in files]
    count = 0
    while True:
        count += 1
        for file, memory in zip(files[::2], maps[1::2], strict=True):
            os.pwrite(file, _NUMBER.pack(count), 0)
            memory[:] = _NUMBER.pack(count)


def counts(tree: str) -> list[int]:
    return [_NUMBER.unpack(Path(tree, str(number)).read_bytes())[0] for number in range(FILES)]


def test_a_snapshot_of_a_stopped_writer_shows_one_moment(pool: Pool) -> None:
    tree = pool.create("one")
    writer = os.fork()
    if not writer:
        try:
            count_into(tree)
        finally:
            os._exit(1)
    try:
        for number in range(50):
            os.kill(writer, signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(writer, os.WUNTRACED)[1])
            if number:  # the first stop may come before the files exist
                pool.sync("one")
                assert counts(pool.snapshot("one", f"copy {number}")) == counts(tree)
            os.kill(writer, signal.SIGCONT)
            wait_until(lambda: are_made(tree), "the writer has begun", brief=True)
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)


def test_sync_commits_until_a_commit_is_quick_or_not_much_quicker_than_the_last(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, snapshot = 0.0, btrfs.snapshot_subvolume
    waiting = iter(list[float]())

    def take(source: str, path: str, *, readonly: bool = False) -> None:
        nonlocal now
        now += next(waiting)
        snapshot(source, path, readonly=readonly)

    pool.create("one")
    monkeypatch.setattr(btrfs_pool, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(btrfs, "snapshot_subvolume", take)
    for took_s in ([0.002], [1.0, 0.002], [1.0, 0.1, 0.02, 0.002], [0.2, 0.2], [1.0, 0.1, 0.06]):
        waiting = iter(took_s)
        pool.sync("one")
        assert list(waiting) == [], f"sync has stopped too early: {took_s}"
    assert pool.list() == ("one",)


def are_made(tree: str) -> bool:
    paths = [f"{tree}/{number}" for number in range(FILES)]
    return os.path.exists(paths[-1]) and 0 not in map(os.path.getsize, paths)


def test_a_sealed_tree_cannot_be_written_to(pool: Pool) -> None:
    path = pool.create("one")
    Path(path, "file").write_text("content")
    pool.seal("one")
    pool.snapshot("one", "two", sealed=True)
    for tree in (path, pool.path("two")):
        for attempt in ((Path(tree, "file"), os.O_WRONLY), (Path(tree, "new"), os.O_WRONLY | os.O_CREAT)):
            with pytest.raises(OSError, match="Read-only file system") as refused:
                os.open(*attempt)
            assert refused.value.errno == errno.EROFS
        with pytest.raises(OSError, match="Read-only file system"):
            os.unlink(f"{tree}/file")


def test_a_native_pool_consists_of_subvolumes_of_the_machines_btrfs(corner: Path) -> None:
    pool_home = POOL_HOMES["native"](corner)
    pool = pool_home.open()
    path = pool.create("one")
    assert path == f"{pool_home.home}/pool/one"
    assert btrfs.is_subvolume(path)
    assert not (pool_home.home / "pool.img").exists()
    assert pool.grow_if_needed().outcome is GrowthOutcome.FIXED
    assert (pool_home.home / "pool").stat().st_mode & 0o777 == 0o700
    pool.close()


def test_removing_a_tree_may_use_the_reserve(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    destroy, room = btrfs.destroy_subvolume, list[bool]()

    def refuse_without_room(path: str) -> None:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        destroy(path)

    monkeypatch.setattr(btrfs, "destroy_subvolume", refuse_without_room)
    monkeypatch.setattr(LoopPool, "make_room", lambda _file, *, with_reserve: room.append(with_reserve))
    pool.create("one")
    pool.remove("one")
    assert (room, pool.list()) == ([True], ())


def test_an_action_that_found_no_space_is_repeated_after_a_growth(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    room, tried = list[bool](), list[bool]()

    def act() -> None:
        tried.append(bool(room))
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LoopPool, "make_room", lambda _file, *, with_reserve: room.append(with_reserve))
    pool.retry_if_full(act)
    assert (tried, room) == ([False, False, True], [False])


def test_the_space_of_removed_trees_becomes_free(pool: Pool) -> None:
    path = pool.create("one")
    before = used_bytes(path)
    Path(path, "data").write_bytes(os.urandom(64 * MIB))
    pool.sync("one")
    pool.snapshot("one", "two", sealed=True)
    for name in ("one", "two"):
        pool.remove(name)
    folder = os.path.dirname(path)

    def is_back() -> bool:
        btrfs.sync_filesystem(folder)
        return used_bytes(folder) < before + 8 * MIB

    wait_until(is_back, "the space is free", PATIENCE_S)
