"""The inode numbers of the files that captured processes have open.

Programs compare them: SQLite writes to no database whose path leads to another inode than it has opened. Snapshots keep
the numbers; files that are made again get new ones. btrfs numbers new files consecutively, so `take` reaches a number
by making as many files.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping

from waypoint.linux.storage import beneath
from waypoint.processes.criu.image_files import FILES, FILES_MAGIC, read_messages
from waypoint.processes.criu.messages import Field, Message, decode

INODES = "open-inodes"
"""A file beside the images: for each open file its inode number and its path in the upper tree, each ending in NUL."""
MAX_BYTES = 1 << 20
MAX_SKIPPED = 50_000
"""Numbers that `take` skips by making files: 20 us each."""
_FIRST, _TOP = 257, 256  # of a new btrfs subvolume; _TOP is its top folder
_MAX_DIGITS = 21
_ORIGIN, _OF_BASE = "trusted.overlay.origin", 0
_FILE = Message({"reg": Field(3, Message({"name": Field(6, "string")}))})
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def note(images_fd: int, tree: int, below: Callable[[str], str]) -> None:
    """Write INODES. `tree`: the captured upper tree. `below`: from a path in the session to the path in the tree.
    Raises OSError; ValueError if an image is malformed.
    """
    found = dict[str, int]()
    for message in read_messages(images_fd, FILES, FILES_MAGIC):
        reg = decode(_FILE, message).get("reg")
        name = reg.get("name") if isinstance(reg, dict) else None
        if not isinstance(name, str) or not name.startswith("/"):
            continue
        path = below(name)
        with contextlib.suppress(OSError), beneath.opened(tree, path, os.O_PATH | os.O_NOFOLLOW) as fd:  # of the base
            if stat.S_ISREG(os.fstat(fd).st_mode):
                found[path] = _number_of(fd)
    content = b"".join(b"%d\0%b\0" % (number, os.fsencode(path)) for path, number in sorted(found.items()))
    if content and len(content) <= MAX_BYTES:
        with open(os.open(INODES, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=images_fd), "wb") as file:
            file.write(content)


def changed(images_fd: int, tree: int) -> list[str]:
    """The paths in the session's tree of the files that have other numbers than INODES says. Raises OSError."""
    try:
        with open(os.open(INODES, os.O_RDONLY | os.O_CLOEXEC, dir_fd=images_fd), "rb") as file:
            wanted = parse(file.read(MAX_BYTES + 1))
    except FileNotFoundError:
        return []
    found = []
    for path, number in wanted.items():
        with contextlib.suppress(OSError), beneath.opened(tree, os.fsdecode(path), os.O_PATH | os.O_NOFOLLOW) as fd:
            if _number_of(fd) != number:
                found.append(os.fsdecode(path))
    return sorted(found)


def _number_of(fd: int) -> int:
    """_OF_BASE if the overlay shows the number of the base's file, of which this one is a copy."""
    return _OF_BASE if _ORIGIN in os.listxattr(beneath.name_of(fd)) else os.fstat(fd).st_ino


def parse(content: bytes) -> dict[bytes, int]:
    """The numbers by path, from the content of INODES. Malformed entries are left out: they may be imported."""
    parts = content.split(b"\0")
    pairs = zip(parts[::2], parts[1::2], strict=False)
    return {path: int(number) for number, path in pairs if number.isdigit() and len(number) < _MAX_DIGITS}


def take(folder: int, wanted: Mapping[bytes, int]) -> dict[bytes, bytes]:
    """Make empty files with these inode numbers in the open folder, a new btrfs subvolume; return their names, by path.
    Numbers that are too high are left out, and all of them on another file system.
    """
    if os.fstat(folder).st_ino != _TOP:
        return {}
    return dict(_take(folder, wanted))


def _take(folder: int, wanted: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    paths = {number: path for path, number in wanted.items() if _FIRST <= number < _FIRST + MAX_SKIPPED}
    left = sorted(paths, reverse=True)
    while left:
        name = b".inode-%d" % left[-1]
        fd = os.open(name, _NEW, 0o600, dir_fd=folder)
        number = os.fstat(fd).st_ino
        os.close(fd)
        if number == left[-1]:
            yield paths[left.pop()], name
            continue
        os.unlink(name, dir_fd=folder)
        while left and left[-1] <= number:  # it is taken
            left.pop()
