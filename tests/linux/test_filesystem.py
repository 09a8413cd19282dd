"""Copying, removing and measuring trees; disk space; programs of the machine."""

import errno
import os
import subprocess
import threading
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_S
from waypoint.linux.calls import handles, programs
from waypoint.linux.calls.paths import StrPath
from waypoint.linux.storage import filesystem, mounts
from waypoint.linux.storage.descriptors import open_folder, path_of

MIB = 1 << 20


@pytest.mark.privileged
def test_a_folder_is_found_by_its_handle_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "folder/in").mkdir(parents=True)
    with open_folder(tmp_path) as root, open_folder(tmp_path / "folder/in") as fd:
        found = handles.handle_of(fd)
        assert found is not None
        (tmp_path / "folder/in").rename(tmp_path / "elsewhere")
        again = handles.open_handle(root, *found)
        assert path_of(again) == str(tmp_path / "elsewhere")
        os.close(again)
    (tmp_path / "elsewhere").rmdir()
    with open_folder(tmp_path) as root, pytest.raises(OSError, match="Stale"):
        handles.open_handle(root, *found)
    with open_folder("/proc/self/fd") as fd:
        assert handles.handle_of(fd) is None


def test_reserved_space_is_there_and_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with path.open("r+b") as file:
        filesystem.reserve_space(file.fileno(), MIB, str(path))
        filesystem.reserve_space(file.fileno(), MIB // 2, str(path))
    assert path.stat().st_size == MIB
    assert path.stat().st_blocks * 512 >= MIB
    assert path.read_bytes().rstrip(b"\0") == b"content"


def test_a_tree_is_copied_next_to_the_source_and_never_into_it(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/-n").write_text("x")
    filesystem.copy_tree(tmp_path / "source", tmp_path / "target")
    assert os.listdir(tmp_path / "target") == ["-n"]


def test_removing_does_not_leave_the_file_system_and_missing_is_fine(tmp_path: Path) -> None:
    (tmp_path / "tree/a/b").mkdir(parents=True)
    filesystem.remove_tree(tmp_path / "tree")
    filesystem.remove_tree(tmp_path / "tree")
    assert os.listdir(tmp_path) == []


@pytest.mark.privileged
def test_what_is_mounted_in_a_tree_is_not_removed_with_it(corner: Path) -> None:
    (corner / "tree/inside").mkdir(parents=True)
    mounts.mount("tmpfs", corner / "tree/inside", "tmpfs")
    (corner / "tree/inside/precious").touch()
    with pytest.raises(subprocess.CalledProcessError):
        filesystem.remove_tree(corner / "tree")
    assert os.listdir(corner / "tree/inside") == ["precious"]


@pytest.mark.privileged
def test_a_copy_that_cannot_keep_an_attribute_is_an_error(corner: Path) -> None:
    (corner / "source").mkdir()
    (corner / "ramfs").mkdir()
    mounts.mount("ramfs", corner / "ramfs", "ramfs")
    os.setxattr(corner / "source", "user.note", b"x")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        filesystem.copy_tree(corner / "source", corner / "ramfs/target")
    assert b"setting attribute" in failed.value.stderr


def test_space_is_counted_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(MIB))
    os.sync()
    assert MIB <= filesystem.used_bytes(tmp_path) < 2 * MIB
    assert 0 < filesystem.free_bytes(tmp_path) < filesystem.total_bytes(tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        filesystem.used_bytes(tmp_path / "gone")


@pytest.mark.privileged
@pytest.mark.parametrize("shape", ["few", "many files", "many folders", "deep"])
def test_trees_of_few_and_of_many_files_are_measured_alike(
    corner: Path, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hard links, holes, a link to a folder and another file system in them."""
    (corner / "outside").write_bytes(bytes(MIB))
    tree = corner / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below/file").write_bytes(os.urandom(100_000))
    os.link(tree / "below/file", tree / "below/linked")
    with (tree / "holes").open("wb") as file:
        file.truncate(MIB)
    (tree / "out").symlink_to(corner)
    (tree / "mounted").mkdir()
    mounts.mount("tmpfs", tree / "mounted", "tmpfs")
    (tree / "mounted/file").write_bytes(bytes(MIB))
    for number in range(400):
        if shape == "many files":
            (tree / f"{number}").write_bytes(b"x")
        elif shape == "many folders":
            (tree / f"{number}").mkdir()
    if shape == "deep":
        (tree / "/".join("d" * 400)).mkdir(parents=True)
    os.sync()
    told = subprocess.run(["du", "-sx", "--block-size=1", tree], check=True, capture_output=True).stdout
    started: list[str] = []
    run = programs.run
    monkeypatch.setattr(programs, "run", lambda name, *args: started.append(name) or run(name, *args))
    assert filesystem.used_bytes(tree) == int(told.split()[0]) > 100_000
    assert started == ([] if shape == "few" else ["du"])
    with pytest.raises(subprocess.CalledProcessError):
        filesystem.used_bytes(tree / "gone")
    assert filesystem.used_bytes(tree / "out") < 10_000, "a link is not followed"


def test_a_program_speaks_english_and_sees_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    variables = programs.run("env").decode().splitlines()
    assert {line.partition("=")[0] for line in variables} == {"PATH", "LC_ALL"}
    assert "LC_ALL=C" in variables


def test_a_missing_program_and_a_failing_one_are_told_apart() -> None:
    assert programs.find("no-such-program") is None
    with pytest.raises(FileNotFoundError, match="no program no-such-program"):
        programs.run("no-such-program")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        programs.run("ls", "/no such file")
    assert b"No such file or directory" in failed.value.stderr


def test_what_could_not_be_written_out_meanwhile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def refuse(path: StrPath) -> None:
        asked.set()
        raise OSError(errno.EIO, f"{path} is broken")

    monkeypatch.setattr(filesystem, "sync_filesystem", refuse)
    with pytest.raises(OSError, match="/var is broken"), filesystem.writing_out(["/var"]):
        assert asked.wait(DEADLINE_S)
