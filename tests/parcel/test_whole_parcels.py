"""What is attached comes back as it was, or is refused; what comes for it makes nothing outside of its place."""

import contextlib
import os
import tracemalloc
from collections import deque
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parcel.attachable import EMPTY, HOSTILE, TOP, folder, packed, parcel, picture
from waypoint.linux.storage.deep import remove_path
from waypoint.linux.storage.descriptors import open_folder
from waypoint.parcel import pack_parcel, unpack_parcel
from waypoint.parcel.acl_ids import ACLS, with_ids
from waypoint.parcel.ends import Pickup, land_at
from waypoint.parcel.pack_parcel import Packing, whole
from waypoint.parcel.parcel_records import (
    MOST_DEEP,
    BadParcel,
    Content,
    FileEnd,
    FolderEnd,
    Omitted,
    ParcelItem,
    records_of,
)
from waypoint.parcel.stamping import stamp_of
from waypoint.parcel.unpack_parcel import Owners, Unpacking, pour, unpack

__all__ = ["folder"]

MINE = Owners(gives=False)


def unpacked(pieces: Iterable[bytes], folder: Path, owners: Owners = MINE) -> Unpacking:
    with open_folder(folder) as fd:
        records = records_of(pieces)
        made = unpack(records, land_at(fd, "made"), owners)
        if next(records, None) is not None:
            raise BadParcel("more")
        return made


def test_a_folder_comes_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    made = unpacked(packed(folder), tmp_path)
    assert picture(tmp_path / "made") == picture(folder)
    assert (made.entries - made.folders, made.size_bytes) == (6, (3 << 20) + 5 + 2)
    assert (tmp_path / "made/sub/tool").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "made/hole").stat().st_blocks < (4 << 20) // 512


def test_access_control_lists_have_the_ids_of_where_they_are(folder: Path, tmp_path: Path) -> None:
    """And what is made in a folder whose default list is another one has its own list, or none."""
    os.setxattr(tmp_path, ACLS[1], os.getxattr(folder / "empty", ACLS[1]))
    unpacked(packed(folder), tmp_path, Owners(gives=False, of=lambda one: one + 1000))
    for path, name in (("x", ACLS[0]), ("empty", ACLS[1])):
        wanted = with_ids(os.getxattr(folder / path, name), lambda one: one + 1000)
        assert os.getxattr(tmp_path / "made" / path, name) == wanted != os.getxattr(folder / path, name)
    for path in ("sub", "sub/tool", "empty", "hole"):
        assert "system.posix_acl_access" not in os.listxattr(tmp_path / "made" / path)
    assert "system.posix_acl_default" not in os.listxattr(tmp_path / "made/sub")


def test_a_file_comes_back_or_is_poured_out(folder: Path, tmp_path: Path) -> None:
    made = unpacked(packed(folder / "hole"), tmp_path)
    assert (made.entries, made.folders, made.size_bytes) == (1, 0, 3 << 20)
    assert (tmp_path / "made").read_bytes() == (folder / "hole").read_bytes()
    with (tmp_path / "poured").open("wb") as file:
        pour(records_of(packed(folder / "hole")), file.fileno())
    assert (tmp_path / "poured").read_bytes() == (folder / "hole").read_bytes()
    backwards = parcel(EMPTY[0], Content(5, b"x"), Content(2, b"x"), FileEnd(9))
    for bad in (packed(folder), [backwards], [parcel(EMPTY[0])], [b""]):
        with (tmp_path / "poured").open("wb") as file, pytest.raises(BadParcel):
            pour(records_of(bad), file.fileno())


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7), is_cut=st.booleans())
@settings(max_examples=100, deadline=None)
def test_what_is_damaged_is_refused_or_makes_nothing_but_its_own(
    *, place: int, bit: int, is_cut: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.mktemp("damaged")
    (top / "a/b").mkdir(parents=True)
    (top / "a/x").write_bytes(b"content")
    os.link(top / "a/x", top / "a/b/y")
    (top / "a/l").symlink_to("x")
    (top / "victim").write_bytes(b"mine")
    sent = bytearray(b"".join(packed(top / "a")))
    place %= len(sent)
    if is_cut:
        del sent[place:]
    else:
        sent[place] ^= 1 << bit
    with contextlib.suppress(BadParcel, OSError):
        unpacked([bytes(sent)], top)
        assert not is_cut
    assert (top / "victim").read_bytes() == b"mine"
    assert set(os.listdir(top)) <= {"a", "victim", "made"}
    remove_path(top)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_parcel_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadParcel):
        unpacked([HOSTILE[name]], tmp_path)


def test_what_it_takes_of_the_disk_is_counted_before(tmp_path: Path) -> None:
    spent: list[int] = []

    def spend(size: int) -> None:
        spent.append(size)
        if sum(spent) > 100_000:
            raise BadParcel("too much")

    files = [record for number in range(1000) for record in (ParcelItem(f"{number}", "file"), FileEnd(0))]
    many = parcel(TOP, *files, FolderEnd())
    with open_folder(tmp_path) as fd, pytest.raises(BadParcel, match="too much"):
        unpack(records_of([many]), land_at(fd, "made"), MINE, spend)
    assert len(os.listdir(tmp_path / "made")) < 30


def test_what_is_kept_of_a_parcel_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long attributes of folders that stay open, what was left out, and files that could get one more name."""
    monkeypatch.setattr(unpack_parcel, "MOST_KEPT_BYTES", 1 << 20)
    with open_folder(tmp_path) as fd:
        unpacking = Unpacking(land_at(fd, "made"), MINE, told=0)
        tracemalloc.start()
        try:
            with contextlib.closing(unpacking):
                unpacking.take(TOP)
                for number in range(60):
                    unpacking.take(ParcelItem(f"{number}", "folder", xattrs=((b"user.x", bytes(900_000 + number)),)))
                    unpacking.take(Omitted("p" * 4096 + str(number), "w" * 4096 + str(number)))
                linked = ((ParcelItem(f"f{one}", "file", number=one), FileEnd(0)) for one in range(1, 5000))
                with pytest.raises(BadParcel, match="several names"):
                    deque(map(unpacking.take, chain.from_iterable(linked)), maxlen=0)
                assert unpacking.entries > 1000
                assert tracemalloc.get_traced_memory()[0] < 4 << 20
        finally:
            tracemalloc.stop()


def test_what_no_record_takes_is_left_out_before_it_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_parcel, "MOST_XATTR_BYTES", 1000)
    monkeypatch.setattr(pack_parcel, "MOST_NUMBERED", 1)
    for name in ("binary", "plain", "linked", "other"):
        (tmp_path / name).write_text(name)
    os.setxattr(tmp_path / "plain", "user.x", b"x" * 900)
    os.setxattr(tmp_path / "binary", "user.x", bytes(200))  # each byte is six of JSON
    for name in ("linked", "other"):
        os.link(tmp_path / name, tmp_path / f"{name}2")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with contextlib.closing(Packing(Pickup(fd, "", ""))) as packing:
            sent = [one.name for one in packing.records if isinstance(one, ParcelItem) and one.kind != "folder"]
    finally:
        os.close(fd)
    why = {one.path.lstrip("/"): one.why for one in packing.left_out}
    assert "extended attributes" in why.pop("binary")
    assert [one.startswith("1 files with several names") for one in why.values()] == [True, True]
    assert {*why} | {*sent} == {"plain", "linked", "linked2", "other", "other2"}
    assert len(sent) == 3


def test_what_would_be_left_out_is_not_attached(folder: Path, tmp_path: Path) -> None:
    """But for what has no content of its own, and what is Waypoint's."""
    wanted = picture(folder)
    times = os.stat(folder / "sub").st_mtime_ns
    os.mkfifo(folder / "sub/fifo")
    os.utime(folder / "sub", ns=(times, times))
    assert unpacked(packed(folder), tmp_path).left_out == [Omitted("sub/fifo", "it is a FIFO")]
    assert picture(tmp_path / "made") == wanted
    facts = os.stat(folder / "sub")
    with open_folder(folder) as fd:
        made = list(whole(Pickup(fd, "", ""), homes={(facts.st_dev, facts.st_ino)}))
    assert Omitted("sub", "it is a home of Waypoint", is_idle=True) in made
    (folder / "/".join(["d"] * MOST_DEEP)).mkdir(parents=True)
    with pytest.raises(OSError, match="lie in each other"):
        packed(folder)


def test_a_stamp_is_another_one_when_something_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stamp() -> str:
        fd = os.open(folder, os.O_RDONLY)
        try:
            return stamp_of(fd)
        finally:
            os.close(fd)

    monkeypatch.setattr("waypoint.parcel.stamping._YOUNG_NS", 1 << 62)
    assert stamp() == ""  # all of it is young
    monkeypatch.setattr("waypoint.parcel.stamping._YOUNG_NS", -(1 << 62))
    first = stamp()
    assert len(first) == 64
    facts = os.stat(folder / "sub")
    with open_folder(folder) as fd:
        without = stamp_of(fd, [(facts.st_dev, facts.st_ino)])
    assert stamp() == first
    (folder / "sub/deep/new").write_bytes(b"")
    assert stamp() != first
    with open_folder(folder) as fd:
        assert stamp_of(fd, [(facts.st_dev, facts.st_ino)]) == without != first
