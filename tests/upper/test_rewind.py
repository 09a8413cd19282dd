"""Rewinding (restoring the files of a tree in place) of deep trees. Plain folders stand for the overlays."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.linux.test_deep import make_levels
from waypoint.linux.storage import deep
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper import copying, views
from waypoint.upper.changes import count_changes
from waypoint.upper.comparing import Scope
from waypoint.upper.rewind import rewind
from waypoint.upper.rewind_plan import make_plan
from waypoint.upper.views import Pairs, Views

LEVELS, NAME = 1100, "name"  # beyond Python's recursion limit and the longest path


class Trees(NamedTuple):
    wanted: Path
    present: Path

    def rewind(self) -> int:
        with open_folder(self.wanted) as shown, open_folder(self.present) as inside:
            both = Views(shown, inside)
            with Pairs(both) as pairs:
                plan = make_plan(views.candidates(str(self.wanted), str(self.present)), pairs, Scope())
            return rewind(plan, both, keep=frozenset()).changed


@pytest.fixture
def trees(tmp_path: Path) -> Iterator[Trees]:
    found = Trees(tmp_path / "wanted", tmp_path / "present")
    for path in found:
        path.mkdir()
    yield found
    for path in found:
        deep.remove_path(path)


def levels_of(tree: Path) -> list[tuple[list[str], list[str]]]:
    with open_folder(tree) as fd:
        return [(visit.folders, visit.others) for visit in deep.walk(fd, NAME)]


@pytest.mark.soak(part="load")
def test_a_deep_tree_is_removed(trees: Trees) -> None:
    make_levels(trees.present, LEVELS, NAME)
    assert trees.rewind() == 1
    assert os.listdir(trees.present) == []


@pytest.mark.soak(part="load")
def test_a_deep_tree_is_restored(trees: Trees) -> None:
    make_levels(trees.wanted, LEVELS, NAME)
    (trees.wanted / NAME).chmod(0o700)
    os.utime(trees.wanted / NAME, (1, 1))
    trees.rewind()
    assert levels_of(trees.present) == levels_of(trees.wanted)
    assert (trees.present / NAME).stat().st_mode == (trees.wanted / NAME).stat().st_mode
    assert (trees.present / NAME).stat().st_mtime == 1


@pytest.mark.privileged
@pytest.mark.requires("root")
def test_a_missing_folder_is_restored_with_all_attributes(trees: Trees) -> None:
    folder = trees.wanted / "folder"
    (folder / "below/empty").mkdir(parents=True)
    (folder / "file").write_bytes(b"content")
    os.link(folder / "file", folder / "below/same")
    with open(folder / "below/sparse", "wb") as sparse:
        sparse.truncate(1 << 20)
        sparse.seek(1 << 19)
        sparse.write(b"x")
    (folder / "link").symlink_to("/nowhere")
    os.mkfifo(folder / "fifo")
    os.setxattr(folder / "file", "user.kept", b"1")
    os.chown(folder / "file", 1, 2)
    (folder / "file").chmod(0o4751)
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, ns=(1_000_000_001, 2_000_000_003), follow_symlinks=False)
    (trees.present / "folder").write_text("a file in its place")
    os.setxattr(folder, "trusted.overlay.opaque", b"y")  # so that rewind replaces the whole folder
    assert trees.rewind() == 8

    def facts(tree: Path) -> dict[str, tuple[object, ...]]:
        found = {}
        for path in tree.rglob("*"):
            own = path.lstat()
            times = own.st_mtime_ns if path.name != "folder" else 0
            size = own.st_size if not path.is_dir() else 0
            found[str(path.relative_to(tree))] = (own.st_mode, own.st_uid, own.st_gid, own.st_nlink, size, times)
        return found

    assert facts(trees.present) == facts(trees.wanted)
    copy = trees.present / "folder"
    assert (copy / "file").read_bytes() == b"content"
    assert os.getxattr(copy / "file", "user.kept") == b"1"
    assert (copy / "below/same").samefile(copy / "file")
    assert os.readlink(copy / "link") == "/nowhere"
    assert (copy / "below/sparse").read_bytes() == (folder / "below/sparse").read_bytes()
    assert (copy / "below/sparse").stat().st_blocks == (folder / "below/sparse").stat().st_blocks


def inodes_of(tree: Path) -> dict[str, int]:
    return {str(path.relative_to(tree)): path.lstat().st_ino for path in tree.rglob("*")}


@pytest.mark.privileged
@pytest.mark.requires("root")
def test_files_that_are_the_same_are_not_touched(trees: Trees) -> None:
    for tree in trees:
        (tree / "d/kept").mkdir(parents=True)
        for name in ("same", "linked", "mode", "time", "other", "one", "apart"):
            (tree / f"d/{name}").write_text(name)
        os.link(tree / "d/linked", tree / "d/kept/linked")
        (tree / "d/link").symlink_to("same")
    os.link(trees.wanted / "d/one", trees.wanted / "d/another")
    os.link(trees.present / "d/apart", trees.present / "d/kept/apart")
    (trees.wanted / "d/kept/apart").write_text("apart")
    (trees.present / "d/another").write_text("other")
    (trees.present / "d/mode").chmod(0o600)
    (trees.present / "d/other").write_text("apart")
    (trees.present / "d/new").mkdir()
    for path in trees.wanted.rglob("*"):
        for tree in trees:
            when = 3 if path.name == "time" and tree == trees.present else 2
            with contextlib.suppress(FileNotFoundError):
                os.utime(tree / path.relative_to(trees.wanted), (when, when), follow_symlinks=False)
    before, changed = inodes_of(trees.present), (trees.present / "d/same").stat().st_ctime_ns
    assert trees.rewind() == 6  # another, kept/apart or apart, mode, new, other, time
    after = inodes_of(trees.present)
    assert {path for path, inode in before.items() if after.get(path) != inode} <= {
        *("d/another", "d/kept/apart", "d/apart", "d/new", "d/other")
    }
    assert (trees.present / "d/same").stat().st_ctime_ns == changed
    assert (trees.present / "d/one").samefile(trees.present / "d/another")
    assert not (trees.present / "d/apart").samefile(trees.present / "d/kept/apart")
    assert (trees.present / "d/mode").stat().st_mode == (trees.wanted / "d/mode").stat().st_mode
    assert {path.stat().st_mtime for path in trees.present.rglob("*")} == {2}
    assert trees.rewind() == 0


def test_a_tree_with_too_long_paths_is_refused(trees: Trees) -> None:
    make_levels(trees.present, 80, "n" * 250)
    with pytest.raises(OSError, match="16384 characters") as caught:
        trees.rewind()
    assert caught.value.errno == errno.ENAMETOOLONG


def test_changes_deep_in_a_tree_are_counted(trees: Trees) -> None:
    (trees.present / "root/upper").mkdir(parents=True)
    make_levels(trees.present / "root/upper", 900, "x" * 10)
    assert count_changes(str(trees.present))[:2] == (900, False)


@pytest.mark.parametrize("side", ["wanted", "present"])
def test_too_many_entries_are_refused_before_anything_changes(
    trees: Trees, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MOST_ENTRIES", 3)
    for number in range(4):
        (getattr(trees, side) / f"file-{number}").touch()
    with pytest.raises(OSError, match="more than 3 of its files differ from the base") as caught:
        trees.rewind()
    assert caught.value.errno == errno.E2BIG
    assert len(os.listdir(trees.present)) == (4 if side == "present" else 0)
    (getattr(trees, side) / "file-3").unlink()
    assert trees.rewind() == 3


def test_a_rewind_that_found_no_space_can_be_repeated(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("+first", "middle", "zlast")  # sorted before and after the name of a temporary copy
    for name in names:
        (trees.wanted / name).write_text("wanted")
        (trees.present / name).write_text("present")
    (trees.present / "other").write_text("present")
    copy, full = copying._copy_content, set(names)

    def copy_if_not_full(origin: int, target: int, wanted: os.stat_result) -> None:
        copy(origin, target, wanted)
        if full:
            full.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(copying, "_copy_content", copy_if_not_full)
    for _ in names:
        with pytest.raises(OSError, match="No space left"):
            trees.rewind()
        assert all((trees.present / name).read_text() in ("present", "wanted") for name in names)
        assert not [name for name in os.listdir(trees.present) if name.startswith(".waypoint-")]
    trees.rewind()
    assert {name: (trees.present / name).read_text() for name in os.listdir(trees.present)} == dict.fromkeys(
        names, "wanted"
    )


def test_a_file_truncated_during_the_copy_is_copied_up_to_its_new_end(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 9000)
    facts = os.stat(tmp_path / "log")
    os.truncate(tmp_path / "log", 5000)
    with open(tmp_path / "log", "rb") as origin, open(tmp_path / "copy", "wb") as copy:
        copying._copy_content(origin.fileno(), copy.fileno(), facts)
    assert (tmp_path / "copy").read_bytes() == b"x" * 5000
