"""A folder comes out of the store as it was stored, with everything that a session's upper tree may have."""

import os
from pathlib import Path

import pytest
from hypothesis import given

from tests.linux.test_deep import corner as deep_corner
from tests.linux.test_deep import make_levels
from tests.store.stores import HOLE, TREES, AnyFolder, add_image, contents, examples, make_tree, put_folder, take_out
from tests.upper.pictures import furnish, picture
from waypoint.linux.storage.deep import remove_path
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import StoreDamaged
from waypoint.store import trees
from waypoint.store.scan import Changed, Cut, ScanOptions, store_folder
from waypoint.store.store import Store
from waypoint.store.upkeep import gc, verify

deep_tmp_path = deep_corner


@pytest.mark.privileged
def test_everything_that_a_tree_may_have_comes_out(store: Store, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    furnish(str(origin))
    (origin / "m0/upper/null").unlink()  # a device
    os.removexattr(origin / "m0/upper/origin", "trusted.overlay.origin")  # names a file of this machine
    root = put_folder(store, origin)
    copy = take_out(store, root, tmp_path / "copy")
    assert picture(copy) == picture(origin)
    assert (copy / "m0/upper/sparse").stat().st_blocks < 100
    assert put_folder(store, copy) == root


@pytest.mark.privileged
@examples(40)
@given(tree=TREES)
def test_any_folder_comes_out(store: Store, tmp_path: Path, tree: AnyFolder) -> None:
    for name in ("one", "two"):
        remove_path(str(tmp_path / name))
    make_tree(os.fsencode(tmp_path / "one"), tree)
    root = put_folder(store, tmp_path / "one")
    assert picture(take_out(store, root, tmp_path / "two")) == picture(tmp_path / "one")
    assert put_folder(store, tmp_path / "two", ScanOptions(earlier=root)) == root


@pytest.mark.privileged
def test_what_names_files_of_this_machine_is_left_out_and_devices_are_refused(store: Store, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "file").write_text("x")
    os.setxattr(origin / "file", "trusted.overlay.origin", b"a handle")
    os.setxattr(origin / "file", "trusted.overlay.redirect", b"/kept")
    copy = take_out(store, put_folder(store, origin), tmp_path / "copy")
    assert os.listxattr(copy / "file") == ["trusted.overlay.redirect"]
    os.mknod(origin / "null", 0o020666, os.makedev(1, 3))
    with pytest.raises(StoreDamaged, match="device") as refused:
        take_out(store, put_folder(store, origin), tmp_path / "other")
    assert refused.value.code == "image-refused"


@pytest.mark.privileged
def test_a_folder_of_any_depth_comes_out(store: Store, deep_tmp_path: Path) -> None:
    origin = deep_tmp_path / "origin"
    origin.mkdir()
    make_levels(origin, 1100)  # deeper than Python recurses
    root = put_folder(store, origin)
    assert put_folder(store, take_out(store, root, deep_tmp_path / "copy")) == root


def test_a_large_folder_is_stored_in_parts_and_a_change_affects_few_of_them(store: Store, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    for number in range(6000):  # more TREEs than an entry lists itself
        os.symlink("x", origin / f"{number}")
    root = put_folder(store, origin)
    (origin / "new").touch()
    with store.writing() as writer, open_folder(origin) as fd:
        later = store_folder(writer, fd, ScanOptions(earlier=root))
        writer.commit()
        assert writer.new_bytes < 8192
    with store.reading() as reader:
        entry = trees.read_root(reader, later).entry
        assert entry.lists
        assert [one.name for one in trees.read_entries(reader, entry)] == sorted(map(os.fsencode, os.listdir(origin)))


def test_a_long_file_shares_its_parts_with_its_later_state(store: Store, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    content = os.urandom(24 << 20)
    (origin / "file").write_bytes(content)
    root = put_folder(store, origin)
    (origin / "file").write_bytes(b"inserted" + content + b"appended")
    with store.writing() as writer, open_folder(origin) as fd:
        later = store_folder(writer, fd, ScanOptions(earlier=root))
        writer.commit()
        assert writer.new_bytes < 3 << 20
    copy = take_out(store, later, tmp_path / "copy")
    assert (copy / "file").read_bytes() == b"inserted" + content + b"appended"


def test_given_cuts_are_used_and_zeros_become_holes(store: Store, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    page = os.urandom(4096)
    (origin / "pages").write_bytes(page + bytes(4096) + page)
    root = put_folder(store, origin, ScanOptions(cut=lambda path, fd, size: [Cut(4096)] * (size // 4096)))
    with store.reading() as reader:
        entry = trees.read_path(reader, root, b"pages")
        assert entry is not None
        assert [digest is None for digest, _ in entry.rows] == [False, True, False]
        assert entry.rows[0] == entry.rows[2]
    assert (take_out(store, root, tmp_path / "copy") / "pages").read_bytes() == page + bytes(4096) + page


def test_only_what_has_changed_is_read(store: Store, tmp_path: Path) -> None:
    """The unchanged files are removed on disk; so they cannot have been read."""
    origin, copy = tmp_path / "origin", tmp_path / "copy"
    for folder in ("same", "other", "moved/inside"):
        (origin / folder).mkdir(parents=True)
        (origin / folder / "file").write_text(f"before in {folder}")
    (origin / "gone").write_text("gone")
    os.link(origin / "same/file", origin / "other/link")
    root = put_folder(store, origin)
    before = origin / "same/file"
    (origin / "gone").unlink()
    (origin / "other/file").write_text("after")
    (origin / "new").write_text("new")
    (origin / "moved").rename(origin / "away")
    inode = origin.stat().st_ino
    changed = Changed({b"", b"other", b"other/file", b"new", b"away"}, {inode: {b"new", b"away"}})
    before.chmod(0o600)  # not among the changes
    later = put_folder(store, origin, ScanOptions(earlier=root, changed=changed))
    before.chmod(0o644)
    assert later == put_folder(store, origin)
    assert (take_out(store, later, copy) / "away/inside/file").read_text() == "before in moved/inside"
    assert (copy / "other/link").samefile(copy / "same/file")


def test_an_unchanged_folder_is_not_opened(store: Store, tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    root = put_folder(store, tmp_path / "origin")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/file").touch()
    assert put_folder(store, tmp_path / "empty", ScanOptions(earlier=root, changed=Changed())) == root


@pytest.mark.privileged
def test_a_long_file_comes_out_and_damage_in_it_is_found(store: Store, tmp_path: Path) -> None:
    """Several threads write it."""
    origin = tmp_path / "origin"
    origin.mkdir()
    with (origin / "long").open("wb") as file:
        for part in contents(4, 40, 256 << 10):
            file.write(part)
            file.seek(HOLE, os.SEEK_CUR)
        file.truncate(file.tell())
    root = put_folder(store, origin)
    assert picture(take_out(store, root, tmp_path / "copy")) == picture(origin)
    (pack,) = store.pack_names()
    with open(store.pack(pack), "r+b") as file:
        file.seek(os.fstat(file.fileno()).st_size // 2)
        file.write(bytes(8))
    with pytest.raises(StoreDamaged):
        take_out(store, root, tmp_path / "damaged")


@pytest.mark.privileged
@examples(15)
@given(one=TREES, two=TREES)
def test_gc_keeps_exactly_what_the_kept_images_need(
    store: Store, tmp_path: Path, one: AnyFolder, two: AnyFolder
) -> None:
    for name in ("one", "two", "out"):
        remove_path(str(tmp_path / name))
    make_tree(os.fsencode(tmp_path / "one"), one)
    make_tree(os.fsencode(tmp_path / "two"), two)
    root = put_folder(store, tmp_path / "one")
    kept = add_image(store, root)
    add_image(store, put_folder(store, tmp_path / "two", ScanOptions(earlier=root)), root)
    gc(store, [kept])
    assert store.image_ids() == [kept]
    assert verify(store, read_data=True) == []
    assert picture(take_out(store, root, tmp_path / "out")) == picture(tmp_path / "one")
    gc(store, [])
    assert store.pack_names() == []
