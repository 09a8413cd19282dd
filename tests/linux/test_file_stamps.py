"""What has changed in a folder, by the stamps of its files."""

import os
import time
from pathlib import Path

import pytest

from waypoint.linux.snapshots import file_stamps
from waypoint.linux.snapshots.file_stamps import differences, note

HOUR_NS = 3_600_000_000_000


def touched(before: Path, now: Path) -> set[bytes]:
    found = differences(before, now)
    assert found is not None
    return found.touched


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    (made / "in").mkdir(parents=True)
    (made / "in/old").write_text("first")
    os.utime(made / "in/old", ns=(1, 1))
    return made


def test_a_stamp_that_is_as_late_as_the_writing_out_is_not_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change may have the same ctime, or none. The control: a later time hides the same changes."""
    monkeypatch.setattr(file_stamps, "_TICK_NS", HOUR_NS)  # the files may be older than a tick when they are noted
    note(folder, trusted_ns=time.time_ns())
    assert touched(folder, folder) == {b"", b"in", b"in/old"}
    with monkeypatch.context() as patch:  # in the daemon's process, which has no time to look at 200,000 rows
        patch.setattr(file_stamps, "_parsed", None)
        note(folder)  # of a snapshot: all of this is as new as its newest file
    assert touched(folder, folder) == {b"", b"in", b"in/old"}
    note(folder, trusted_ns=time.time_ns() + 2 * HOUR_NS)
    assert touched(folder, folder) == set()


def test_what_is_in_memory_alone_has_stamps_that_tell_nothing(folder: Path) -> None:
    assert not file_stamps.are_told("/dev/shm")
    assert file_stamps.are_told(str(folder))


@pytest.mark.parametrize("act", ["content", "mode", "attribute", "another inode"])
def test_a_change_that_keeps_size_and_mtime_is_seen(folder: Path, act: str) -> None:
    before, path = folder.with_name("before"), folder / "in/old"
    note(before, of=folder, trusted_ns=time.time_ns() + HOUR_NS)
    assert touched(before, folder) == set()
    begun = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == begun:
        if act == "content":
            path.write_text("other")
        elif act == "mode":
            path.chmod(0o600)
        elif act == "attribute":
            os.setxattr(path, "user.note", b"x")
        else:
            (folder.parent / "new").write_text("other")
            (folder.parent / "new").replace(path)
        os.utime(path, ns=(1, 1))
    assert b"in/old" in touched(before, folder)


def test_a_copy_has_the_stamps_of_what_it_is_of(folder: Path) -> None:
    first, second = folder.with_name("first"), folder.with_name("second")
    for copy in (first, second):
        copy.mkdir()  # whatever is in it
        note(copy, of=folder, trusted_ns=time.time_ns() + HOUR_NS)
    assert touched(first, second) == set()
    second.rmdir()
    assert touched(second, first) == set(), "also of what is gone"


def test_what_was_spoilt_tells_nothing(folder: Path) -> None:
    assert differences(folder, folder) is None
    note(folder)
    for content in (b"", bytes(4096), b"word\0d 1 2.3 4 \0", b"5\0d 1\0", b"newest\0"):
        (folder.parent / ".stamps/tree").write_bytes(content)
        assert differences(folder, folder) is None, content


def test_stamps_are_kept_as_far_as_there_is_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note(folder)
    place = folder.parent / ".stamps"
    monkeypatch.setattr(file_stamps, "MOST_BYTES", 2 * (place / "tree").stat().st_size)
    for name in ("one", "two", "three"):
        note(folder.with_name(name), of=folder)
        os.utime(place / name, ns=(len(name), time.time_ns()))
    assert {one.name for one in place.iterdir()} == {"two", "three"}
    monkeypatch.setattr(file_stamps, "MOST_BYTES", 60)  # less than those of the folder
    note(folder.with_name("four"), of=folder)
    assert not (place / "four").exists()
    assert differences(folder.with_name("three"), folder) is None
