"""Copying, removing and measuring trees; disk space; programs of the machine."""

import contextlib
import fcntl
import os
import signal
import subprocess
from pathlib import Path

import pytest

from waypoint.linux.calls import programs
from waypoint.linux.storage import filesystem, mounts

MIB = 1 << 20


def test_reserving_space_allocates_it_and_keeps_the_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with path.open("r+b") as file:
        filesystem.reserve_space(file.fileno(), MIB, str(path))
        filesystem.reserve_space(file.fileno(), MIB // 2, str(path))
    assert path.stat().st_size == MIB
    assert path.stat().st_blocks * 512 >= MIB
    assert path.read_bytes().rstrip(b"\0") == b"content"


def test_a_tree_is_copied_to_the_target_itself(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/-n").write_text("x")
    filesystem.copy_tree(tmp_path / "source", tmp_path / "target")
    assert os.listdir(tmp_path / "target") == ["-n"]


def test_removing_a_tree_twice_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "tree/a/b").mkdir(parents=True)
    filesystem.remove_tree(tmp_path / "tree")
    filesystem.remove_tree(tmp_path / "tree")
    assert os.listdir(tmp_path) == []


def test_a_copy_that_waits_for_a_lease_is_given_up(tmp_path: Path) -> None:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    with contextlib.ExitStack() as opened:
        lease = opened.enter_context((tmp_path / "source/file").open("w"))
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        opened.callback(signal.signal, signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fds = [os.open(tmp_path / name, os.O_RDONLY | os.O_DIRECTORY) for name in ("source", "target")]
        for fd in fds:
            opened.callback(os.close, fd)
        with pytest.raises(subprocess.TimeoutExpired):
            filesystem.copy_tree_within(None, *fds, 0.1)


@pytest.mark.privileged
def test_removing_a_tree_keeps_files_mounted_in_it(corner: Path) -> None:
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


def test_used_free_and_total_space_are_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(MIB))
    os.sync()
    assert MIB <= filesystem.used_bytes(tmp_path) < 2 * MIB
    assert 0 < filesystem.free_bytes(tmp_path) < filesystem.total_bytes(tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        filesystem.used_bytes(tmp_path / "gone")


def test_programs_run_in_english_without_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    variables = programs.run("env").decode().splitlines()
    assert {line.partition("=")[0] for line in variables} == {"PATH", "LC_ALL"}
    assert "LC_ALL=C" in variables


def test_a_missing_program_and_a_failing_one_raise_different_errors() -> None:
    assert programs.find("no-such-program") is None
    with pytest.raises(FileNotFoundError, match="no program no-such-program"):
        programs.run("no-such-program")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        programs.run("ls", "/no such file")
    assert b"No such file or directory" in failed.value.stderr
