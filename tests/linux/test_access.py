"""Acting with another user's rights over files, in one thread alone."""

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


def test_a_user_may_what_the_modes_say(files: Path) -> None:
    with access.as_user(USER, USER, [4242]):
        assert [may(files / name) for name in ("roots", "read", "group", "folder")] == [False, True, True, False]
        assert [may(files / name, write=True) for name in ("read", "group")] == [False, True]
        with pytest.raises(PermissionError):
            (files / "roots").read_text()
    with access.as_user(USER, USER, []):
        assert not may(files / "group")
    assert may(files / "roots", write=True)  # root again, and the negative control


def test_what_is_opened_as_the_user_is_asked_about_by_its_descriptor(files: Path) -> None:
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
        other.submit(int).result()  # the thread is there: a new one has the rights of whoever starts it
        with access.as_user(USER, USER, [4242]):
            assert other.submit(may, files / "roots").result()
            assert other.submit(os.getgroups).result() == groups
            assert not may(files / "roots")


def test_the_rights_come_back_after_a_failure(files: Path) -> None:
    groups = os.getgroups()

    def fail() -> None:
        with access.as_user(USER, USER, [4242]):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (os.getgroups(), may(files / "roots", write=True)) == (groups, True)
