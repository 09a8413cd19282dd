"""Publishing and locking files."""

import os
import stat
from pathlib import Path

import pytest

from waypoint.linux.storage import files


def test_publishing_replaces_the_whole_file_and_sets_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    files.publish(str(path), b"a long first version")
    old = path.open("rb")
    files.publish(str(path), b"second", mode=0o644, durable=False)
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    with old:
        assert old.read() == b"a long first version"
    assert os.listdir(tmp_path) == ["record.json"]


def test_publishing_replaces_the_leftover_of_a_crash(tmp_path: Path) -> None:
    (tmp_path / "record.json.new").symlink_to(tmp_path / "elsewhere")
    files.publish(str(tmp_path / "record.json"), b"content")
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_failed_publishing_leaves_only_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "record.json").mkdir()
    with pytest.raises(IsADirectoryError):
        files.publish(str(tmp_path / "record.json"), b"content")
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_lock_is_held_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with files.locked(path), pytest.raises(BlockingIOError):
        files.lock(path, wait=False)
    os.close(files.lock(path, wait=False))


def test_a_lock_on_a_removed_file_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = files.lock(str(path), wait=False)
    path.unlink()
    fresh = files.lock(str(path), wait=True)
    assert os.path.samestat(os.fstat(fresh), path.stat())
    os.close(held)
    os.close(fresh)
