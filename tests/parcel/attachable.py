"""A folder that has all that a parcel keeps, what is compared of it, and parcels that nobody should unpack."""

import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.parcel.acl_ids import ACLS
from waypoint.parcel.ends import Pickup
from waypoint.parcel.pack_parcel import gathered, whole
from waypoint.parcel.parcel_records import Content, FileEnd, FolderEnd, Packed, ParcelEnd, ParcelItem, encode

ODD = b"odd \xff\n name"
_NONE = (1 << 32) - 1


def acl_of(user: int, rights: int = 4) -> bytes:
    """An access control list: the owner may read and write, this user as `rights` say, others nothing."""
    entries = ((0x01, 6, _NONE), (0x02, rights, user), (0x04, 0, _NONE), (0x10, rights, _NONE), (0x20, 0, _NONE))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a hole, a link that leads out, two names of one file, a name that is no text, empty things, modes, ACLs."""
    top = tmp_path / "top"
    (top / "sub/deep").mkdir(parents=True)
    (top / "empty").mkdir(mode=0o700)
    (top / "x").write_bytes(b"hello")
    os.link(top / "x", top / "sub/deep/again")
    os.symlink("/etc/passwd", top / "sub/out")
    with (top / "hole").open("wb") as file:
        file.seek(3 << 20)
        file.write(os.urandom(3 << 20))
        file.truncate(9 << 20)
    Path(os.fsdecode(os.fsencode(top) + b"/" + ODD)).write_bytes(b"")
    (top / "sub/tool").write_bytes(b"#!")
    (top / "sub/tool").chmod(0o6755)
    (top / "sub").chmod(0o2750)
    os.setxattr(top / "empty", ACLS[1], acl_of(77))
    os.setxattr(top / "x", ACLS[0], acl_of(78, 6))
    os.setxattr(top / "x", b"user.kind", b"\0\xff")
    os.utime(top / "sub/tool", ns=(1, -5_000_000_001))
    return top


def packed(path: Path) -> list[bytes]:
    """The parcel of a file or folder, in pieces."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return list(gathered(map(encode, whole(Pickup(fd, "", "")))))
    finally:
        os.close(fd)


def picture(top: Path) -> dict[bytes, tuple[object, ...]]:
    """All that a parcel keeps but owners, by path."""
    found: dict[bytes, tuple[object, ...]] = {}
    inodes: dict[int, int] = {}
    for path in sorted([os.fsencode(top), *_below(os.fsencode(top))]):
        facts = os.lstat(path)
        content: object = None
        if stat.S_ISLNK(facts.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(facts.st_mode):
            content = Path(os.fsdecode(path)).read_bytes()
        names = () if stat.S_ISLNK(facts.st_mode) else sorted(os.listxattr(path))
        xattrs = [(name, os.getxattr(path, name)) for name in names if name.startswith(("user.", "system.posix"))]
        known = inodes.setdefault(facts.st_ino, len(inodes))
        key = os.path.relpath(path, os.fsencode(top))
        found[key] = stat.S_IFMT(facts.st_mode), facts.st_mode & 0o777, facts.st_mtime_ns, content, known, xattrs
    return found


def _below(top: bytes) -> Iterator[bytes]:
    for above, folders, files in os.walk(top):
        yield from (os.path.join(above, one) for one in (*folders, *files))


def parcel(*records: Packed) -> bytes:
    return b"".join(map(encode, (*records, ParcelEnd())))


EMPTY = (ParcelItem("", "file", 0o644), FileEnd(0))
TOP = ParcelItem("", "folder", 0o755)
HOSTILE = {
    "a name that leads up": parcel(TOP, ParcelItem("..", "file"), FileEnd(0), FolderEnd()),
    "a path": parcel(TOP, ParcelItem("a/b", "file"), FileEnd(0), FolderEnd()),
    "no name": parcel(TOP, *EMPTY, FolderEnd()),
    "a device": parcel(TOP, ParcelItem("a", "device"), FolderEnd()),
    "a link at the top": parcel(ParcelItem("", "link", target="x")),
    "a name of no file": parcel(TOP, ParcelItem("a", "again", number=1), FolderEnd()),
    "a time that no file has": parcel(ParcelItem("", "file", mtime=1 << 63), FileEnd(0)),
    "an owner that no file has": parcel(ParcelItem("", "file", uid=-1), FileEnd(0)),
    "content of no file": parcel(TOP, Content(0, b"x"), FolderEnd()),
    "something behind it": parcel(*EMPTY) + b"x",
    "another behind it": parcel(*EMPTY) + parcel(*EMPTY),
    "no end": parcel(*EMPTY)[:-1],
    "nothing": b"",
}
