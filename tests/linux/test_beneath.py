"""Opening files in folders whose content another user controls."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from waypoint.linux.calls import libc
from waypoint.linux.storage import beneath, mounts


@pytest.fixture
def folder(tmp_path: Path) -> int:
    """A descriptor of a folder with a file and links. The folder above has a file of the same name."""
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (inside / "file").write_text("inside")
    (tmp_path / "file").write_text("outside")
    (inside / "link").symlink_to("file")
    (inside / "sub/up").symlink_to("..")
    return os.open(inside, os.O_PATH)


def test_no_path_leaves_the_folder(folder: int) -> None:
    for path in ("file", "/file", "../file", "sub/../../file", "/../../file"):
        with os.fdopen(beneath.open_beneath(folder, path, os.O_RDONLY)) as file:
            assert file.read() == "inside", path
    os.close(folder)


def test_links_are_not_followed(folder: int) -> None:
    for path in ("link", "sub/up/file"):
        with pytest.raises(OSError, match="openat2") as caught:
            beneath.open_beneath(folder, path, os.O_RDONLY)
        assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, path)
    os.close(folder)


def test_links_are_followed_within_the_root_only(folder: int, tmp_path: Path) -> None:
    (tmp_path / "inside/absolute").symlink_to("/file")
    (tmp_path / "inside/out").symlink_to("../../file")
    for link in ("link", "absolute", "out"):
        with os.fdopen(beneath.open_in_root(folder, link, os.O_RDONLY)) as file:
            assert file.read() == "inside", link
    os.close(folder)


def test_files_can_be_made_beneath_the_folder(folder: int, tmp_path: Path) -> None:
    fd = beneath.open_beneath(folder, "/sub/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    assert os.get_inheritable(fd) is False
    os.close(fd)
    os.close(folder)
    assert (tmp_path / "inside/sub/new").exists()


def test_a_mount_point_behind_a_link_is_refused_as_misplaced(folder: int, tmp_path: Path) -> None:
    os.close(folder)
    for path in ("/link", "sub/up/file", "missing"):
        with (
            pytest.raises(OSError, match="the mount point was removed or replaced") as caught,
            beneath.MountPlace(str(tmp_path / "inside"), path).opened(),
        ):
            pass
        assert (caught.value.errno, caught.value.filename) == (beneath.MISPLACED, path)


def test_an_error_at_a_mount_point_names_its_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(NotADirectoryError) as caught, beneath.MountPlace(str(tmp_path), "/sub").opened() as name:
        raise NotADirectoryError(errno.ENOTDIR, "so", name)
    assert caught.value.filename == "/sub"


def test_reading_stays_in_the_root_and_never_blocks(folder: int, tmp_path: Path) -> None:
    os.close(folder)
    inside = tmp_path / "inside"
    (inside / "absolute").symlink_to("/file")
    (inside / "out").symlink_to("../../sub")
    (tmp_path / "secret").write_text("outside")
    (inside / "host").symlink_to(tmp_path / "secret")
    os.mkfifo(inside / "fifo")
    read = {name: beneath.read_in_root(inside, name, 4) for name in os.listdir(inside)}
    nothing = dict.fromkeys(("sub", "out", "host", "fifo"))
    assert read == {"file": b"insi", "link": b"insi", "absolute": b"insi", **nothing}
    assert (beneath.read_in_root(inside, "none", 4), beneath.read_in_root(tmp_path / "none", "file", 4)) == (None, None)
    assert [name for name in ("file", "out/", "file/", "host") if beneath.is_in_root(inside, name)] == ["file", "out/"]


@pytest.mark.privileged
@pytest.mark.requires("root")
def test_mounts_below_the_root_are_read_only_with_across(folder: int, tmp_path: Path) -> None:
    os.close(folder)
    place = tmp_path / "inside/sub"
    mounts.mount("tmpfs", place, "tmpfs", 0)
    try:
        (place / "file").write_text("below")
        found = [beneath.read_in_root(tmp_path / "inside", "sub/file", 9, across=across) for across in (False, True)]
    finally:
        mounts.umount(place)
    assert found == [None, b"below"]


def test_a_lookup_that_a_rename_elsewhere_disturbs_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    real, left = libc.syscall, [BlockingIOError(errno.EAGAIN, "a rename")] * 3

    def syscall(*given: Any, **named: Any) -> int:
        if left:
            raise left.pop()
        return real(*given, **named)

    monkeypatch.setattr(libc, "syscall", syscall)
    assert beneath.read_in_root(tmp_path, "file", 10) == b""
    assert not left
