"""A folder that is put into a store comes back as it was, with everything that a session's upper tree may have."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.linux.test_deep import make_levels
from tests.store.content.stores import new_store, opened_again
from tests.store.trees.any_tree import TREES, AnyFolder, blocks, make_tree
from tests.upper.grounds import MIB
from tests.upper.pictures import furnish, picture
from waypoint.linux.storage import mounts
from waypoint.linux.storage.deep import remove_path
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import CannotCapture, Failed
from waypoint.store.content.opened import Store
from waypoint.store.packs.digests import Kind
from waypoint.store.trees import entries
from waypoint.store.trees.bringing import Bringing
from waypoint.store.trees.earlier import Earlier
from waypoint.store.trees.gathering import gather
from waypoint.store.trees.reachable import reachable
from waypoint.upper.copying import copy_content

FOLDERS = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(new_store(tmp_path / "store")) as made:
        yield made


def test_an_error_of_the_disk_is_no_hole(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it for a copy that is made of the file."""
    (tmp_path / "tree").mkdir()
    path = tmp_path / "tree/file"
    with path.open("wb") as file:
        os.pwrite(file.fileno(), b"content", 1 << 20)

    def fail(_fd: int, _place: int, _whence: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with path.open("rb") as file, (tmp_path / "copy").open("wb") as copy:
        monkeypatch.setattr(os, "lseek", fail)
        with pytest.raises(OSError, match="Input/output error"):
            copy_content(file.fileno(), copy.fileno(), path.stat())
    with pytest.raises(Failed, match="Input/output error"):
        put(store, tmp_path / "tree")


def put(store: Store, folder: Path, earlier: bytes = b"") -> bytes:
    with store.writing("put") as writer, open_folder(folder) as fd:
        digest = gather(writer, fd, earlier=earlier)
        writer.commit()
        return digest


def bring(store: Store, digest: bytes, folder: Path) -> Path:
    folder.mkdir()
    with store.reading() as reader, open_folder(folder) as fd:
        Bringing(reader, digest).to(fd)
    return folder


@pytest.mark.privileged
def test_everything_that_a_tree_may_have_comes_back(store: Store, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    furnish(str(origin))
    (origin / "m0/upper/null").unlink()  # a device: see below
    os.removexattr(origin / "m0/upper/origin", "trusted.overlay.origin")  # names a file of this machine
    before = picture(origin)
    digest = put(store, origin)
    copy = bring(opened_again(store), digest, tmp_path / "copy")
    assert picture(copy) == before
    assert (copy / "m0/upper/sparse").stat().st_blocks < 100
    assert put(store, copy) == digest
    with store.writing("again") as writer:
        assert writer.added.objects == 0


@pytest.mark.privileged
def test_what_names_files_of_this_machine_is_left_out(store: Store, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "file").write_text("x")
    os.setxattr(origin / "file", "trusted.overlay.origin", b"a handle")
    os.setxattr(origin / "file", "trusted.overlay.redirect", b"/kept")
    copy = bring(store, put(store, origin), tmp_path / "copy")
    assert os.listxattr(copy / "file") == ["trusted.overlay.redirect"]


@pytest.mark.privileged
def test_a_device_that_no_session_can_make_is_refused(store: Store, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    os.mknod(origin / "null", 0o020666, os.makedev(1, 3))
    digest = put(store, origin)
    with pytest.raises(CannotCapture, match="device"):
        bring(store, digest, tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


@pytest.mark.privileged
@FOLDERS
@given(tree=TREES)
def test_any_folder_comes_back(store: Store, tmp_path: Path, tree: AnyFolder) -> None:
    one, two = os.fsencode(tmp_path / "one"), os.fsencode(tmp_path / "two")
    for folder in (one, two):
        remove_path(os.fsdecode(folder))
    make_tree(one, tree)
    digest = put(store, tmp_path / "one")
    assert picture(bring(store, digest, tmp_path / "two")) == picture(tmp_path / "one")
    taken = blocks(one)
    assert all(count <= taken[path] for path, count in blocks(two).items()), "holes are kept"
    assert put(store, tmp_path / "two") == digest


@pytest.mark.parametrize("size", [0, 1, 4096, 256 * 1024, 256 * 1024 + 1, 5 * MIB + 3])
def test_a_file_of_any_size_comes_back(store: Store, tmp_path: Path, size: int) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "file").write_bytes(os.urandom(size))
    copy = bring(store, put(store, origin), tmp_path / "copy")
    assert (copy / "file").read_bytes() == (origin / "file").read_bytes()


def test_a_byte_more_costs_little(store: Store, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "file").write_bytes(os.urandom(32 * MIB))
    first = put(store, origin)
    with (origin / "file").open("ab") as file:
        file.write(b"x")
    with store.writing("put") as writer, open_folder(origin) as fd:
        gather(writer, fd, earlier=first)
        assert writer.added.stored < 2 * MIB


def test_a_long_file_has_lists_and_its_change_is_small(store: Store, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "file").write_bytes(os.urandom(150 * MIB))
    first = put(store, origin)
    with store.reading() as reader:
        entry = Earlier(reader, first).find([b"file"])
        assert entry is not None
        assert entry.lists
        kinds = [kind for kind, _ in reachable(reader, [first])]
    assert kinds.count(Kind.LIST) >= 1
    with (origin / "file").open("r+b") as file:
        file.seek(70 * MIB)
        file.write(b"another word")
    with store.writing("put") as writer, open_folder(origin) as fd:
        second = gather(writer, fd, earlier=first)
        writer.commit()
        assert writer.added.stored < 2 * MIB
    copy = bring(store, second, tmp_path / "copy")
    assert (copy / "file").read_bytes() == (origin / "file").read_bytes()


def test_a_large_folder_is_split_and_a_name_more_costs_little(store: Store, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    for number in range(3000):
        (origin / f"file {number}").write_bytes(b"%d" % number)
    first = put(store, origin)
    (origin / "file 1500").write_bytes(b"changed")
    with store.writing("put") as writer, open_folder(origin) as fd:
        second = gather(writer, fd, earlier=first)
        writer.commit()
        assert writer.added.stored < 1000
    with store.reading() as reader:
        assert len(Earlier(reader, second).trees([])) > 3
        assert len(Earlier(reader, second).inside([])) == 3000


def test_the_deepest_folder_comes_back(store: Store, tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    make_levels(tmp_path / "origin", 1500)
    digest = put(store, tmp_path / "origin")
    bring(store, digest, tmp_path / "copy")
    assert put(store, tmp_path / "copy", earlier=digest) == digest
    with store.reading() as reader:
        assert Earlier(reader, digest).find([b"k"] * 1500 + [b"file"]) is not None
    for name in ("origin", "copy"):
        remove_path(tmp_path / name)


@pytest.mark.privileged
def test_any_time_that_a_file_may_have_comes_back(store: Store, tmp_path: Path) -> None:
    """As far as 64 bits tell of nanoseconds; beyond that, the last one."""
    nearest = {"1500": -(1 << 63), "1969": -1_000_000_001, "2500": 16725225600 * 10**9 + 1, "9999": (1 << 64) - 1}
    times = nearest | {"1500": -14831769600 * 10**9, "9999": 253370764800 * 10**9}
    (tmp_path / "origin").mkdir()
    (tmp_path / "copy").mkdir()
    for place in ("origin", "copy"):
        mounts.mount("tmpfs", tmp_path / place, "tmpfs", 0, "size=1m")  # which keeps any time
    try:
        for name, time in times.items():
            (tmp_path / "origin" / name).write_text("x")
            os.utime(tmp_path / "origin" / name, ns=(time, time))
        digest = put(store, tmp_path / "origin")
        with store.reading() as reader, open_folder(tmp_path / "copy") as fd:
            Bringing(reader, digest).to(fd)
        assert {name: (tmp_path / "copy" / name).stat().st_mtime_ns for name in times} == nearest
    finally:
        for place in ("origin", "copy"):
            mounts.umount(tmp_path / place)


def test_a_file_with_more_attributes_than_anybody_could_read_is_not_taken(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "MOST_CODED", 2000)
    (tmp_path / "origin/sub").mkdir(parents=True)
    (tmp_path / "origin/sub/file").write_text("x")
    (tmp_path / "origin/sub/other").write_text("x")
    os.setxattr(tmp_path / "origin/sub/file", "user.much", bytes(3000))
    with pytest.raises(CannotCapture) as caught:
        put(store, tmp_path / "origin")
    assert (caught.value.on, caught.value.next_step) == ("sub/file", "remove some of them, and checkpoint again")
    os.removexattr(tmp_path / "origin/sub/file", "user.much")
    put(store, tmp_path / "origin")


def test_more_names_of_files_than_anybody_could_read_are_not_taken(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "MOST_LINKS", 20)
    (tmp_path / "origin").mkdir()
    (tmp_path / "origin/file").write_text("x")
    (tmp_path / "origin/another name of it").hardlink_to(tmp_path / "origin/file")
    with pytest.raises(CannotCapture, match="several names"):
        put(store, tmp_path / "origin")


def test_more_names_of_one_file_than_fit_into_any_other_object_come_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have more bytes than a folder may have, but not more than names may have."""
    monkeypatch.setattr(entries, "MOST_CODED", 1 << 16)
    deep = "/".join(["d" * 250] * 14)
    folder = tmp_path / "origin" / deep
    folder.mkdir(parents=True)
    (folder / "file").write_text("x")
    count = entries.MOST_CODED // len(deep) + 1
    for number in range(count):
        (folder / f"{number}").hardlink_to(folder / "file")
    copy = bring(store, put(store, tmp_path / "origin"), tmp_path / "copy")
    assert (copy / deep / "file").stat().st_nlink == count + 1
    assert (copy / deep / f"{count - 1}").samefile(copy / deep / "file")


def test_the_same_content_has_the_same_digest_in_any_order_of_making(store: Store, tmp_path: Path) -> None:
    for folder, names in (("one", "abc"), ("two", "cba")):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text(name)
            os.utime(tmp_path / folder / name, ns=(1, 2))
        os.utime(tmp_path / folder, ns=(1, 2))
    assert put(store, tmp_path / "one") == put(store, tmp_path / "two")


def test_an_entry_keeps_what_it_was_told() -> None:
    rows: list[entries.Piece] = [(bytes(32), 5), (None, 7)]
    entry = entries.TreeEntry(b"name", entries.REGULAR, 0o644, 1, 2, -3, [(b"user.x", b"\0")], rows)
    ((content, count),) = entries.split([entry])
    assert count == 1
    assert entries.decode_tree(content) == [entry]
    assert entry.size == 12
