"""Acting in one thread with the file access rights of another user."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from waypoint.linux.storage import access

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root")]

USER = 65_534


def may(path: Path, *, write: bool = False) -> bool:
    try:
        access.check(str(path), write=write)
    except OSError:
        return False
    return True


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/") and not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o11)
    for name, mode, gid in (("roots", 0o600, 0), ("read", 0o644, 0), ("group", 0o660, 4242), ("folder", 0o744, 0)):
        path = tmp_path / name
        path.mkdir() if name == "folder" else path.touch()
        os.chown(path, 0, gid)
        path.chmod(mode)
    return tmp_path


def test_access_follows_the_modes_of_files(files: Path) -> None:
    with access.as_user(USER, USER, [4242]):
        assert [may(files / name) for name in ("roots", "read", "group", "folder")] == [False, True, True, False]
        assert [may(files / name, write=True) for name in ("read", "group")] == [False, True]
        with pytest.raises(PermissionError):
            (files / "roots").read_text()
    with access.as_user(USER, USER, []):
        assert not may(files / "group")
    assert may(files / "roots", write=True)  # root again


def test_access_to_an_open_file_is_checked_even_if_its_path_was_replaced(files: Path) -> None:
    fd = os.open(files / "read", os.O_PATH)
    (files / "read").rename(files / "aside")
    (files / "roots").rename(files / "read")
    try:
        with access.as_user(USER, USER, []):
            assert may(Path(f"/proc/self/fd/{fd}"))
            assert not may(files / "read")
    finally:
        os.close(fd)


def test_other_threads_keep_their_rights(files: Path) -> None:
    groups = os.getgroups()
    with ThreadPoolExecutor(1) as other:
        other.submit(int).result()  # start the thread now: a new one inherits the rights of its starter
        with access.as_user(USER, USER, [4242]):
            assert other.submit(may, files / "roots").result()
            assert other.submit(os.getgroups).result() == groups
            assert not may(files / "roots")


def test_after_an_exception_the_thread_has_its_own_rights_again(files: Path) -> None:
    groups = os.getgroups()

    def fail() -> None:
        with access.as_user(USER, USER, [4242]):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (os.getgroups(), may(files / "roots", write=True)) == (groups, True)
