"""The contract of `waypoint.upper.contract.Pool`, for each driver."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.upper.pictures import furnish, picture
from tests.upper.pool_homes import MIB, PoolHome, fill, used_bytes
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.storage import btrfs, btrfs_sharing, mounts
from waypoint.model.errors import Failed, StateConflict, UnknownName
from waypoint.upper.contract import GrowthOutcome, Pool
from waypoint.upper.loop_pool import LoopPool
from waypoint.upper.marks import SEALED
from waypoint.upper.open_pool import open_pool

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs", "overlay")]

ODD_TREE_NAMES = ["new\nline", os.fsdecode(b"\xff\xfe"), "-rf", " *?", "back\\slash", "a,b:c=d", "n" * 200, "ä" * 100]


def write(path: str, text: str = "content") -> None:
    Path(path).write_text(text)


def read(path: str) -> str:
    return Path(path).read_text()


def test_a_new_tree_is_empty_and_writable(pool: Pool, pool_home: PoolHome) -> None:
    assert pool.driver == pool_home.driver
    path = pool.create("one")
    assert path == pool.path("one")
    assert os.listdir(path) == []
    write(f"{path}/file")
    assert pool.list() == ("one",)


def test_a_tree_keeps_its_path_when_the_pool_is_opened_again(pool: Pool, pool_home: PoolHome) -> None:
    furnish(pool.create("one"))
    before, path = picture(pool.path("one")), pool.path("one")
    pool.close()
    again = open_pool(pool_home.home)
    assert again.driver == pool.driver
    assert again.path("one") == path
    assert again.list() == ("one",)
    assert picture(path) == before
    again.close()
    again.close()


def test_a_taken_name_is_refused_and_its_tree_does_not_change(pool: Pool) -> None:
    write(f"{pool.create('one')}/file", "one")
    write(f"{pool.create('two')}/file", "two")
    pool.create("empty")
    attempts: list[Callable[[], object]] = [
        lambda: pool.create("one"),
        lambda: pool.snapshot("two", "one"),
        lambda: pool.snapshot("one", "one"),
        lambda: pool.snapshot("one", "empty"),
    ]
    for attempt in attempts:
        with pytest.raises(StateConflict, match="the name is taken"):
            attempt()
    assert read(f"{pool.path('one')}/file") == "one"
    assert os.listdir(pool.path("empty")) == []


def test_a_missing_tree_is_named_in_the_error_and_can_be_removed(pool: Pool) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: pool.snapshot("gone", "new"),
        lambda: pool.seal("gone"),
        lambda: pool.limit("gone", MIB),
        lambda: pool.usage("gone"),
        lambda: pool.sync("gone"),
    ]
    for attempt in attempts:
        with pytest.raises(UnknownName, match="gone"):
            attempt()
    pool.remove("gone")
    assert pool.list() == ()


def test_every_call_refuses_invalid_names(pool: Pool) -> None:
    pool.create("one")
    attempts: list[Callable[[str], object]] = [
        lambda name: pool.create(name),
        lambda name: pool.snapshot("one", name),
        lambda name: pool.snapshot(name, "two"),
        lambda name: pool.remove(name),
        lambda name: pool.path(name),
    ]
    for name in ["", ".", "..", ".hidden", "a/b", "/", "nul\0", "n" * 201, "ä" * 101]:
        for attempt in attempts:
            with pytest.raises(ValueError, match="not the name of an upper tree"):
                attempt(name)
        assert pool.list() == ("one",), name


def test_every_call_accepts_unusual_names(pool: Pool) -> None:
    pool.create("source")
    for name in ODD_TREE_NAMES:
        write(f"{pool.create(name)}/file", name.encode(errors="surrogateescape").hex())
        pool.snapshot(name, f"{name[:50]}+")
        pool.sync(name)
        pool.seal(name)
        assert pool.usage(name) >= 0
        assert read(f"{pool.path(name[:50] + '+')}/file") == name.encode(errors="surrogateescape").hex()
    assert set(pool.list()) == {"source", *ODD_TREE_NAMES, *(f"{name[:50]}+" for name in ODD_TREE_NAMES)}
    for name in pool.list():
        pool.remove(name)
    assert pool.list() == ()


def test_a_snapshot_keeps_content_and_attributes(pool: Pool) -> None:
    furnish(pool.create("one"))
    before = picture(pool.path("one"))
    path = pool.snapshot("one", "two")
    assert path == pool.path("two")
    assert picture(path) == before
    assert picture(pool.path("one")) == before
    assert os.stat(f"{path}/m0/upper/sparse").st_blocks * 512 < MIB
    assert os.stat(f"{path}/m0/upper/sparse").st_size > 64 * MIB


def test_a_snapshot_and_its_source_are_independent(pool: Pool) -> None:
    write(f"{pool.create('one')}/file", "old")
    pool.snapshot("one", "two")
    write(f"{pool.path('one')}/file", "new")
    write(f"{pool.path('two')}/other")
    assert read(f"{pool.path('two')}/file") == "old"
    assert os.listdir(pool.path("one")) == ["file"]
    pool.remove("one")
    assert read(f"{pool.path('two')}/file") == "old"


def overlay(lower: Path, tree: str, at: Path) -> None:
    upper, work = f"{tree}/m0/upper", f"{tree}/m0/work"
    for folder in (upper, work, at):
        os.makedirs(folder, exist_ok=True)
    places = ",".join(
        f"{kind}={mounts.escape(path)}" for kind, path in (("lowerdir", lower), ("upperdir", upper), ("workdir", work))
    )
    mounts.mount("overlay", at, "overlay", 0, f"{places},index=off,metacopy=off,redirect_dir=on,xino=off")


def furnish_lower(lower: Path) -> None:
    for folder in ("kept", "emptied", "replaced", "moved", "deleted"):
        (lower / folder).mkdir(parents=True)
        for name in ("first", "second"):
            (lower / folder / name).write_text(f"{folder} {name} from below")
    os.symlink("kept/first", lower / "link")


def work_in(view: Path) -> None:
    """Change files of both layers as a session does: delete, replace, empty, move, append."""
    (view / "kept/first").unlink()
    with (view / "kept/second").open("a") as file:
        file.write(" and more")
    for folder in ("emptied", "replaced", "deleted"):
        for name in ("first", "second"):
            (view / folder / name).unlink()
        (view / folder).rmdir()
    (view / "emptied").mkdir()
    (view / "replaced").write_text("a file now")
    (view / "moved").rename(view / "moved away")
    (view / "link").unlink()
    (view / "link").write_text("no link")
    (view / os.fsdecode(b"odd\n\xff")).write_text("new")
    os.setxattr(view / "kept", "user.note", b"said by the session")


def test_overlays_on_a_snapshot_and_on_its_source_show_the_same(pool: Pool, corner: Path) -> None:
    lower, view, other = corner / "lower", corner / "view", corner / "other"
    furnish_lower(lower)
    overlay(lower, pool.create("one"), view)
    work_in(view)
    seen = picture(view)
    assert {b"emptied", b"moved away/first", b"kept/second", b"odd\n\xff"} < set(seen)
    assert not {b"emptied/first", b"kept/first", b"deleted", b"moved"} & set(seen)

    overlay(lower, pool.snapshot("one", "two"), other)  # while the first overlay is still mounted
    assert picture(other) == seen
    (other / "only here").write_text("x")
    later = picture(other)
    mounts.umount(other)
    assert picture(view) == seen
    mounts.umount(view)

    pool.seal("two")
    overlay(lower, pool.snapshot("two", "three"), other)
    assert picture(other) == later
    mounts.umount(other)


def is_sealed(pool: Pool, name: str) -> bool:
    """Return whether the kernel refuses writing (btrfs), or the tree has the mark SEALED (copy)."""
    path = pool.path(name)
    return SEALED in os.listxattr(path) if pool.driver == "copy" else not os.access(path, os.W_OK)


def test_a_sealed_tree_stays_sealed(pool: Pool, pool_home: PoolHome) -> None:
    for name in ("one", "two"):
        pool.create(name)
    assert not is_sealed(pool, "one")
    pool.seal("one")
    pool.seal("one")
    assert is_sealed(pool, "one")
    pool.close()
    again = pool_home.open()
    assert [is_sealed(again, name) for name in again.list()] == [True, False]
    again.close()


def test_a_snapshot_of_a_sealed_tree_is_writable(pool: Pool) -> None:
    write(f"{pool.create('one')}/file", "kept")
    pool.seal("one")
    pool.snapshot("one", "two", sealed=True)
    pool.snapshot("two", "three")
    assert [is_sealed(pool, name) for name in pool.list()] == [True, False, True]  # one, three, two
    write(f"{pool.path('three')}/more")
    assert sorted(os.listdir(pool.path("three"))) == ["file", "more"]
    assert os.listdir(pool.path("two")) == ["file"]
    pool.seal("three")
    assert is_sealed(pool, "three")


def test_removing_a_tree_sealed_or_not_frees_its_name(pool: Pool) -> None:
    for name, sealed in (("open", False), ("sealed", True)):
        furnish(pool.create(name))
        if sealed:
            pool.seal(name)
        pool.remove(name)
        assert not os.path.exists(pool.path(name))
        assert os.listdir(pool.create(name)) == []
        assert not is_sealed(pool, name)
    assert pool.list() == ("open", "sealed")


def test_folders_deeper_than_a_path_are_measured_and_removed(pool: Pool) -> None:
    inner = os.open(pool.create("deep"), os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 250, dir_fd=inner)
        outer, inner = inner, os.open("d" * 250, os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    assert pool.usage("deep") >= 0
    assert pool.measure(["deep"]).trees["deep"].total_bytes >= 0
    assert pool.disk_bytes() >= 0
    pool.remove("deep")
    assert pool.list() == ()


def test_a_tree_with_a_mount_in_it_is_not_removed(pool: Pool, corner: Path) -> None:
    (corner / "precious").mkdir()
    (corner / "precious/file").write_text("not ours")
    inside = f"{pool.create('one')}/in\nside"
    os.mkdir(inside)
    mounts.bind(corner / "precious", inside)
    with pytest.raises(StateConflict, match="is mounted"):
        pool.remove("one")
    assert (corner / "precious/file").read_text() == "not ours"
    mounts.umount(inside)
    pool.remove("one")
    assert pool.list() == ()


def test_usage_counts_hard_links_once_and_no_holes(pool: Pool) -> None:
    path = pool.create("one")
    empty = pool.usage("one")
    Path(path, "data").write_bytes(os.urandom(8 * MIB))
    os.link(f"{path}/data", f"{path}/again")
    with open(f"{path}/hole", "wb") as file:
        file.truncate(64 * MIB)
    pool.sync("one")
    assert 8 * MIB <= pool.usage("one") - empty < 9 * MIB


def test_usage_works_on_a_tree_in_use(pool: Pool) -> None:
    path = pool.create("one")
    script = "import os, shutil\nwhile True: os.makedirs('a/b/c'); os.mkdir('a/d'); shutil.rmtree('a')"
    busy = subprocess.Popen([sys.executable, "-c", script], cwd=path)
    try:
        assert all(pool.usage("one") >= 0 for _ in range(20))
    finally:
        busy.kill()
        busy.wait()


def test_writing_lowers_the_free_bytes(pool: Pool) -> None:
    path, before = pool.create("one"), pool.free_bytes()
    used = used_bytes(path)
    Path(path, "data").write_bytes(os.urandom(16 * MIB))
    pool.sync("one")
    assert before - pool.free_bytes() > 15 * MIB
    assert 15 * MIB < used_bytes(path) - used < 20 * MIB


def test_an_empty_pool_does_not_grow(pool: Pool) -> None:
    growth = pool.grow_if_needed()
    assert growth.outcome in (GrowthOutcome.ENOUGH, GrowthOutcome.FIXED)
    assert pool.grow_if_needed().size_bytes == growth.size_bytes
    assert abs(growth.free_bytes - pool.free_bytes()) < MIB


@pytest.mark.soak(part="load")
def test_a_pool_holds_a_thousand_trees(pool: Pool) -> None:
    names = [f"{number:04}" for number in range(1000)]
    for name in names:
        write(f"{pool.create(name)}/file", name)
    pool.snapshot("0999", "copy")
    assert pool.list() == (*names, "copy")
    assert read(f"{pool.path('0500')}/file") == "0500"
    for name in names:
        pool.remove(name)
    assert pool.list() == ("copy",)
    assert read(f"{pool.path('copy')}/file") == "0999"


@pytest.mark.soak(part="load")
def test_threads_may_work_on_different_trees(pool: Pool) -> None:
    furnish(pool.create("source"))
    before = picture(pool.path("source"))

    def live(number: int) -> bool:
        name = f"thread {number}"
        write(f"{pool.create(name)}/file", name)
        pool.snapshot("source", f"{name} copy", sealed=True)
        pool.sync(name)
        pool.grow_if_needed()
        alike = picture(pool.path(f"{name} copy")) == before
        pool.remove(name)
        return alike

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(live, range(24)))
    assert pool.list() == tuple(sorted(["source", *(f"thread {number} copy" for number in range(24))]))


def test_in_a_full_pool_trees_can_be_synced_sealed_and_removed(pool: Pool, pool_home: PoolHome) -> None:
    furnish(pool.create("one"))
    Path(pool.create("two"), "data").write_bytes(os.urandom(4 * MIB))
    before = picture(pool.path("one"))
    fill(f"{pool.create('filler')}/file")

    made = snapshot_if_space_is_free(pool, "two", "new")
    pool.sync("one")
    pool.seal("one")
    assert is_sealed(pool, "one")
    assert pool.list() == ("filler", *made, "one", "two")
    assert picture(pool.path("one")) == before
    pool.close()

    pool = pool_home.open()  # a full pool must open, so that trees can be removed
    assert pool.list() == ("filler", *made, "one", "two")
    pool.remove("filler")
    assert pool.list() == (*made, "one", "two")
    wait_until(lambda: snapshot_if_space_is_free(pool, "two", "newer") == ["newer"], "there is free space", PATIENCE_S)
    assert all(picture(pool.path(name)) == picture(pool.path("two")) for name in (*made, "newer"))
    assert picture(pool.path("one")) == before
    pool.close()


def snapshot_if_space_is_free(pool: Pool, source: str, name: str) -> list[str]:
    """Return the name of a new snapshot, or nothing if the pool is full: btrfs may have space for metadata only."""
    try:
        pool.snapshot(source, name)
    except Failed as err:
        if "No space left on device" not in err.said:
            raise
        if pool.driver == "btrfs":
            btrfs.sync_filesystem(pool.path(source))  # otherwise the kernel does this after some seconds
        return []
    return [name]


def test_the_size_of_a_pool_in_a_file_needs_no_walk_over_its_files(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(pool.create("one"), "both").write_bytes(os.urandom(8 * MIB))
    pool.snapshot("one", "two")
    pool.settle()
    before = pool.unique_bytes()
    if isinstance(pool, LoopPool):
        monkeypatch.setattr(btrfs, "disk_usage", lambda _path: pytest.fail("walks over the files"))
        assert pool.unique_bytes() == before
    assert before // MIB == (16 if pool.driver == "copy" else 8)


@pytest.mark.parametrize("can_read_blocks", [True, False])
def test_own_bytes_of_trees_are_told_from_shared_ones(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, *, can_read_blocks: bool
) -> None:
    if not can_read_blocks:
        monkeypatch.setattr(btrfs_sharing, "__file__", "/dev/null/no-program")
    Path(pool.create("one"), "both").write_bytes(os.urandom(8 * MIB))
    pool.snapshot("one", "two")
    Path(pool.path("two"), "own").write_bytes(os.urandom(3 * MIB))
    pool.sync("two")
    pool.settle()
    with monkeypatch.context() as patch:
        if can_read_blocks:
            patch.setattr(btrfs, "disk_usage", lambda *_: pytest.fail("asks about each file"))
        found = pool.measure(["one", "two", "none"])
    one, two = found.trees["one"], found.trees["two"]
    copies = 2 if pool.driver == "copy" else 1  # with the driver `copy`, trees share no space
    assert [found.total_bytes // MIB for found in (one, two)] == [8, 11]
    assert [found.own_bytes // MIB for found in (one, two)] == ([8, 11] if copies == 2 else [0, 3])
    assert [size // MIB for size in (pool.unique_bytes(), found.unique_bytes)] == 2 * [8 * copies + 3]
    assert pool.disk_bytes() >= pool.unique_bytes()
    assert (len(found.trees), found.failed) == (2, {})
