"""`furnish` fills a tree with everything that a copy could lose; `picture` returns its content for comparison."""

import os
import stat
import struct
from pathlib import Path
from typing import Any

from tests.upper.pool_homes import MIB
from waypoint.linux.storage import filesystem
from waypoint.upper.marks import SEALED

ODD_NAMES = [
    b"new\nline",
    b"\xff\xfe not UTF-8 \x80",
    b"-rf",
    b" *",
    b"back\\slash",
    b"\x01\x7f",
    b"l" * 255,
    "näme".encode(),
]

_ACL_USER_1234_RWX = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHi", tag, permissions, owner)
    for tag, permissions, owner in ((1, 6, -1), (2, 7, 1234), (4, 4, -1), (16, 7, -1), (32, 4, -1))
)
_CAPABILITY_NET_RAW = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)


def furnish(tree: str) -> None:
    """Put all kinds of files and attributes into the tree that overlayfs and its users may make."""
    root = Path(tree, "m0/upper")
    (root / "deep/er").mkdir(parents=True)
    for name in ODD_NAMES:
        with open(os.path.join(os.fsencode(root), name), "wb") as file:
            file.write(b"content of " + name)
    _furnish_files(root)
    _furnish_others(root)
    os.setxattr(root / "deep", "trusted.overlay.opaque", b"y")
    os.setxattr(root / "deep", "trusted.overlay.redirect", b"/else\nwhere")
    (root / "locked").mkdir()
    (root / "locked/inside").write_text("x")
    (root / "locked").chmod(0)
    os.utime(root / "deep", ns=(1_000_000_000_123_456_789, 1_111_111_111_987_654_321))


def _furnish_files(root: Path) -> None:
    owned = root / "owned"
    owned.write_bytes(b"#!/bin/sh\n")
    os.chown(owned, 1234, 5678)
    owned.chmod(0o6755)
    os.utime(owned, ns=(2, 3))
    for name, attribute, value in (
        ("labelled", "user.note", b"\x00\xff any bytes"),
        ("listed", "system.posix_acl_access", _ACL_USER_1234_RWX),
        ("able", "security.capability", _CAPABILITY_NET_RAW),
        ("origin", "trusted.overlay.origin", b"\x00\xfb\x21\x00handle"),
    ):
        (root / name).write_text(name)
        os.setxattr(root / name, attribute, value)
    for name in ("deep/second name", "deep/er/third name"):
        os.link(root / "labelled", root / name)
    with (root / "sparse").open("wb") as file:
        file.seek(64 * MIB)
        file.write(b"the end")
    (root / "large").write_bytes(bytes(range(256)) * 4096)


def _furnish_others(root: Path) -> None:
    filesystem.make_whiteout(root / "deep/whiteout")
    os.mkfifo(root / "fifo", 0o640)
    os.mknod(root / "socket", stat.S_IFSOCK | 0o700)
    os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (root / "dangling").symlink_to("no where\n")
    os.chown(root / "dangling", 12, 34, follow_symlinks=False)
    os.utime(root / "dangling", ns=(5, 6), follow_symlinks=False)


def picture(root: str | Path) -> dict[bytes, Any]:
    """Return the content and attributes of all files of the tree `root` by path; `root` itself is `b""`."""
    top, names_of_inode = os.fsencode(root), dict[int, list[bytes]]()
    facts: dict[bytes, Any] = {}
    for folder, folders, files in os.walk(top):
        for path in [folder, *(os.path.join(folder, name) for name in folders + files)]:
            name = os.path.relpath(path, top) if path != top else b""
            facts[name] = _facts(path)
            status = os.lstat(path)
            if not stat.S_ISDIR(status.st_mode):
                names_of_inode.setdefault(status.st_ino, []).append(name)
    facts[b"hard links"] = sorted(sorted(names) for names in names_of_inode.values() if len(names) > 1)
    return facts


def _facts(path: bytes) -> tuple[Any, ...]:
    status = os.lstat(path)
    content: bytes | str | None = None
    attributes = {}
    if stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)  # drivers need not copy attributes of symlinks
    else:
        attributes = {name: os.getxattr(path, name) for name in os.listxattr(path) if name != SEALED}
    if stat.S_ISREG(status.st_mode):
        content = Path(os.fsdecode(path)).read_bytes()
    device = status.st_rdev if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode) else None
    return status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, device, attributes, content
