"""Whatever is packed is what is unpacked; and nothing that is sent makes names where it must not."""

import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waypoint.parcel.ends import Landing, land, take_up
from waypoint.parcel.pack_parcel import Packing
from waypoint.parcel.parcel_records import (
    MOST_DEEP,
    BadParcel,
    Content,
    Decoder,
    FileEnd,
    FolderEnd,
    Packed,
    ParcelEnd,
    ParcelItem,
    encode,
)
from waypoint.parcel.unpack_parcel import BESIDE, Owners, Unpacking

MINE = Owners(gives=False)
ODD = os.fsdecode(b"n\xff\n")


def opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY)


def packed(source: str) -> Iterator[bytes]:
    origin = take_up(opened, source)
    try:
        with contextlib.closing(Packing(origin)) as packing:
            yield from packing
    finally:
        os.close(origin.folder)


def unpack(data: Iterator[bytes], target: str) -> Unpacking:
    decoder = Decoder()
    with contextlib.closing(Unpacking(lambda item: land(opened, target, item), MINE)) as unpacking:
        for piece in data:
            for record in decoder.feed(piece):
                unpacking.take(record)
    return unpacking


def copy(source: Path | str, target: Path | str) -> Unpacking:
    return unpack(packed(str(source)), str(target))


def facts(path: Path) -> tuple[object, ...]:
    found = path.lstat()
    kind = stat.S_IFMT(found.st_mode)
    content = path.read_bytes() if kind == stat.S_IFREG else path.readlink() if kind == stat.S_IFLNK else None
    mode = 0 if kind == stat.S_IFLNK else found.st_mode & 0o1777
    return kind, mode, found.st_mtime_ns, found.st_nlink if kind == stat.S_IFREG else 0, content


def tree_of(root: Path) -> dict[str, tuple[object, ...]]:
    return {str(path.relative_to(root)): facts(path) for path in root.rglob("*")}


def test_a_folder_is_what_it_was(tmp_path: Path) -> None:
    source = tmp_path / "from"
    (source / "deep/er").mkdir(parents=True)
    (source / ODD).write_bytes(bytes(range(256)) * 3000)
    os.link(source / ODD, source / "deep/er/again")
    os.link(source / ODD, source / "deep/third")
    os.setxattr(source / ODD, "user.kind", b"\x00\xff")
    (source / "link").symlink_to("/nowhere/..")
    (source / "tool").write_text("run")
    (source / "tool").chmod(0o6755)
    os.mkfifo(source / "fifo")
    with (source / "holes").open("wb") as file:
        file.truncate(1 << 34)
        file.seek(1 << 33)
        file.write(b"middle")
    (source / "deep").chmod(0o1711)
    os.utime(source / "deep", ns=(1, 123456789))
    done = copy(source, tmp_path / "to")
    assert [(one.path, one.why) for one in done.left_out] == [("from/fifo", "it is a FIFO")]
    (source / "fifo").unlink()
    (source / "holes").unlink()
    copied = tmp_path / "to/holes"
    assert (copied.stat().st_size, copied.stat().st_blocks < 100) == (1 << 34, True)
    with copied.open("rb") as file:
        file.seek(1 << 33)
        assert file.read(7) == b"middle\0"
    copied.unlink()
    assert os.getxattr(tmp_path / "to" / ODD, "user.kind") == b"\x00\xff"
    assert (tmp_path / "to/deep/third").samefile(tmp_path / "to" / ODD)
    wanted, found = tree_of(source), tree_of(tmp_path / "to")
    assert wanted == found
    assert (tmp_path / "to").stat().st_mtime_ns != 0


@pytest.mark.parametrize(
    ("source", "target", "lands"),
    [
        ("f", "new", "new"),
        ("f", "there", "there/f"),
        ("f", "there/", "there/f"),
        ("f", "old", "old"),
        ("f", "dirlink", "there/f"),
        ("f", "filelink", "filelink"),
        ("d", "new", "new/in"),
        ("d", "new/", "new/in"),
        ("d/", "there", "there/d/in"),
        ("d/.", "there", "there/in"),
        ("d/.", "new", "new/in"),
        ("dirlink", "new", "new"),
        ("dirlink/", "there2", "there2/dirlink/x"),
    ],
)
def test_places_are_those_of_cp(source: str, target: str, lands: str, tmp_path: Path) -> None:
    for name in ("d", "there", "there2"):
        (tmp_path / name).mkdir()
    for name in ("f", "d/in", "there/x", "old"):
        (tmp_path / name).write_text(name)
    (tmp_path / "dirlink").symlink_to("there")
    (tmp_path / "filelink").symlink_to("old")
    before = tree_of(tmp_path)
    # Not f"{tmp_path / target}": pathlib takes the slash at the end away.
    copy(f"{tmp_path}/{source}", f"{tmp_path}/{target}")
    assert lands in tree_of(tmp_path)
    assert (tmp_path / "old").read_text() == ("f" if lands == "old" else "old")
    if source == "dirlink":
        assert (tmp_path / "new").is_symlink()
    assert before.keys() <= tree_of(tmp_path).keys()


@pytest.mark.parametrize(
    ("source", "target"), [("f", "no/such"), ("f", "new/"), ("f", "taken"), ("taken", "f"), ("nothing", "new")]
)
def test_what_cannot_be_copied_changes_nothing(source: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("f")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/f").mkdir()
    (tmp_path / "here").mkdir()
    before = tree_of(tmp_path)
    with pytest.raises(OSError, match=r"No such file|Not a directory|Is a directory|Too many"):
        copy(f"{tmp_path}/{source}", f"{tmp_path}/{target}")
    assert tree_of(tmp_path).keys() == before.keys()
    assert (tmp_path / "f").read_text() == "f"


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 3_000_000)
    (tmp_path / "to").write_text("before")
    parts = list(packed(f"{tmp_path}/f"))
    unpack(iter(parts[:-2]), f"{tmp_path}/to")
    assert (tmp_path / "to").read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"f", "to"}


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to/d").symlink_to(tmp_path / "out")
    records = [ParcelItem("d", "folder", 0o755), ParcelItem("f", "file", 0o644), FileEnd(0), FolderEnd(), ParcelEnd()]
    with pytest.raises(OSError, match=r"Not a directory|Too many"):
        unpack(map(encode, records), f"{tmp_path}/to")
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "to/f").symlink_to(tmp_path / "out/f")
    records = [ParcelItem("f", "file", 0o644), Content(0, b"new"), FileEnd(3), ParcelEnd()]
    unpack(map(encode, records), f"{tmp_path}/to")
    assert (tmp_path / "to/f").read_text() == "new"
    assert not (tmp_path / "to/f").is_symlink()


TOP = ParcelItem("d", "folder", 0o755)
BAD: list[list[Packed]] = [
    [ParcelItem("..", "folder")],
    [ParcelItem(".", "folder")],
    [ParcelItem("a/b", "file")],
    [ParcelItem("a\0b", "file")],
    [ParcelItem("a" * 300, "file")],
    [TOP, ParcelItem("", "folder")],
    [TOP, ParcelItem("x", "again", number=7)],
    [TOP, ParcelItem("x", "file"), ParcelItem("y", "file")],
    [TOP, ParcelItem("x", "file"), FolderEnd()],
    [TOP, Content(0, b"x")],
    [TOP, FileEnd(3)],
    [TOP, FolderEnd(), FolderEnd()],
    [TOP, FolderEnd(), ParcelItem("second", "folder")],
    [TOP, ParcelEnd()],
    [TOP, FolderEnd(), ParcelEnd(), FolderEnd()],
    [TOP, ParcelItem("x", "file"), Content((1 << 63) - 1, b"xx")],
    [ParcelItem("d", "device")],
    [ParcelItem("d", "folder")] * (MOST_DEEP + 2),
]


@pytest.mark.parametrize("records", BAD, ids=lambda records: "-".join(str(one)[:30] for one in records[:3]))
def test_what_is_no_parcel_is_refused(records: list[Packed], tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    with pytest.raises(BadParcel):
        unpack(map(encode, records), f"{tmp_path}/to")
    assert {path.name for path in tmp_path.iterdir()} == {"to"}
    assert not list(tmp_path.rglob(f"{BESIDE}*"))


@given(st.binary(max_size=200), st.sampled_from(b"EDFULZ"))
def test_no_bytes_but_a_parcel_are_taken(data: bytes, kind: int) -> None:
    with contextlib.suppress(BadParcel):
        for _ in Decoder().feed(bytes([kind]) + len(data).to_bytes(4, "big") + data):
            pass


@settings(max_examples=50)
@given(st.lists(st.binary(min_size=1, max_size=40)), st.integers(1, 50))
def test_bytes_may_come_in_any_pieces(contents: list[bytes], size: int) -> None:
    records: list[Packed] = [TOP]
    for number, content in enumerate(contents):
        records += [ParcelItem(f"{number}", "file", 0o600, xattrs=((b"user.x", content),)), Content(0, content)]
        records += [FileEnd(len(content))]
    records += [FolderEnd(), ParcelEnd()]
    data, decoder = b"".join(map(encode, records)), Decoder()
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    assert [record for piece in pieces for record in decoder.feed(piece)] == records


def test_whoever_swaps_folders_for_links_meanwhile_leads_nobody_out(tmp_path: Path) -> None:
    """As a process of a session might, on both sides: the copy has what was in the folder, or fails."""
    secret, source, target = (tmp_path / name for name in ("secret", "source", "target"))
    for folder in (secret, source / "d", target):
        folder.mkdir(parents=True)
    (secret / "key").write_text("secret")
    (source / "d/key").write_text("mine")
    over, swaps = threading.Event(), 0

    def swap() -> None:
        nonlocal swaps
        while not over.is_set():
            for place in (source / "d", target / "source/d"):
                aside = place.parent / "aside"
                with contextlib.suppress(OSError):  # it was not copied yet, or is copied anew meanwhile
                    place.rename(aside)
                    place.symlink_to(secret)
                    place.unlink()
                    aside.rename(place)
                    swaps += 1
                if place != source / "d":
                    shutil.rmtree(aside, ignore_errors=True)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(200):
            with contextlib.suppress(OSError, BadParcel):
                copy(source, target)
    finally:
        over.set()
        thread.join()
    copy(source, target)  # the last ones may have missed the file, which was moved away
    assert swaps > 10
    assert {path.name: path.read_text() for path in secret.iterdir()} == {"key": "secret"}
    copies = [path.read_text() for path in target.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {*copies} == {"mine"}


def test_a_landing_is_closed(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("f")
    before = len(os.listdir("/proc/self/fd"))
    copy(tmp_path / "f", tmp_path / "g")
    with pytest.raises(FileNotFoundError):
        copy(tmp_path / "none", tmp_path / "g")
    item = ParcelItem("f", "file")
    os.close(Landing(*land(opened, str(tmp_path), item)).folder)
    assert len(os.listdir("/proc/self/fd")) == before
