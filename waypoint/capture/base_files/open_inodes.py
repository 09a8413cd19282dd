"""The inode numbers of files that processes write to. A program can compare the one of the file that it has open with
the one of the file that has the name, and take another number for another file: SQLite does, and then writes no more
(sqlite3.c, fileHasMoved).

A snapshot has the numbers of what it was made of; what is brought back from the store is made anew, and so is a copy,
where the pool is of plain folders. btrfs numbers the files of a subvolume in the order in which they are made, so the
next number is had by making files until it comes.
"""

import contextlib
import os
import stat
from collections.abc import Iterator

import msgspec

from waypoint.capture.base_files.mentioned import opened_files, target_of
from waypoint.linux.calls import powers
from waypoint.linux.snapshots.btrfs import is_subvolume
from waypoint.linux.storage import beneath, files
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import as_text
from waypoint.model.records import Fixed
from waypoint.upper import layout

NOTE = "other-inodes"
"""The file in the capture's hot folder that tells which files have other numbers; missing if none has."""
_MOST_FILES = 256
_MOST_PASSED = 5000
"""Numbers that are passed over in all, 20 to 100 microseconds each."""
_MOST_SHOWN = 3
_UNKNOWN = 0
"""In place of the number of a file that cannot have its number again: a copy has another one already."""
_MOST_BYTES = 2 << 20  # of the note: 256 paths of 4 KiB

Inodes = list[tuple[bytes, int]]
"""Paths in an upper tree, each with the number of the file."""


def inodes_of(images: str, fixed: Fixed, tree: str) -> Inodes:
    """Those of the files in the upper tree that processes write to, by the numbers; of many, the lowest. Where the tree
    is none of btrfs, whose snapshots alone have the numbers, each is _UNKNOWN. Raises OSError, ValueError if an image
    is malformed.
    """
    found = set()
    is_snapshot = is_subvolume(tree)
    with open_folder(images) as images_fd, open_folder(tree) as tree_fd:
        for one in opened_files(images_fd):
            target = target_of(one.path, fixed)
            if not one.is_written or target not in fixed.overlays:
                continue
            upper = os.path.relpath(layout.upper_of(tree, target), tree)
            path = f"{upper}/{one.path[len(target.rstrip('/')) + 1 :]}"
            with contextlib.suppress(OSError), beneath.opened(tree_fd, path) as fd:  # it lies in the base, say
                facts = os.fstat(fd)
                if stat.S_ISREG(facts.st_mode) and (is_snapshot or not _has_number_of_base(fd, target, facts)):
                    found.add((os.fsencode(path), facts.st_ino if is_snapshot else _UNKNOWN))
    return sorted(found, key=lambda one: (one[1], one[0]))[:_MOST_FILES]


def _has_number_of_base(fd: int, target: str, facts: os.stat_result) -> bool:
    """Whether the overlay shows the number of a file of the base in place of that of the file in the upper tree:
    overlayfs.rst, "Inode properties", the row "layers all on same fs".
    """
    try:
        os.getxattr(beneath.name_of(fd), powers.overlay_mark("origin"))
        return os.stat(target).st_dev == facts.st_dev
    except OSError:
        return False


@contextlib.contextmanager
def made_first(tree: str, inodes: Inodes) -> Iterator[dict[bytes, int]]:
    """New files without names in the empty upper tree at the path `tree`, by the paths at which they are to be, as
    descriptors that the caller may use and does not close. One that cannot have its number is not made. Raises OSError.
    """
    with contextlib.ExitStack() as held, open_folder(tree) as tree_fd:
        made: dict[bytes, int] = {}
        left = _MOST_PASSED
        for path, number in inodes[:_MOST_FILES] if is_subvolume(tree) else ():
            while left:
                fd = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=tree_fd)
                got = os.fstat(fd).st_ino
                if got == number:
                    held.callback(os.close, fd)
                    made[path] = fd
                    break
                os.close(fd)
                left -= 1
                if got > number or number - got > left:
                    break
        yield made


def note_others(hot: str, tree: str, inodes: Inodes) -> None:
    """Note in the capture's hot folder which files in the tree have other numbers. Raises OSError."""
    others = []
    with open_folder(tree) as tree_fd:
        for path, number in inodes:
            with contextlib.suppress(OSError), beneath.opened(tree_fd, os.fsdecode(path)) as fd:
                if os.fstat(fd).st_ino != number:
                    others.append(path)
    if others:
        files.publish(f"{hot}/{NOTE}", msgspec.msgpack.encode(others), durable=False)


def others_in_words(hot: str, images: str, fixed: Fixed | None, tree: str) -> list[str]:
    """What a restore of the capture's processes has to tell of their files, in one line at most. `hot`: the capture's
    folder. `images`, `fixed`, `tree`: as for `inodes_of`.
    """
    paths: list[bytes] = []
    with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
        if fixed is not None and not is_subvolume(tree):
            paths = [path for path, _ in inodes_of(images, fixed, tree)]
        else:
            paths = msgspec.msgpack.decode(files.read_small(f"{hot}/{NOTE}", _MOST_BYTES), type=list[bytes])
    if not paths:
        return []
    shown = [as_text(os.fsdecode(path.partition(b"/upper")[2])) for path in paths[:_MOST_SHOWN]]
    more = f" and {len(paths) - _MOST_SHOWN} more" if len(paths) > _MOST_SHOWN else ""
    has = "has another inode number" if len(paths) == 1 else "have other inode numbers"
    return [f"{', '.join(shown)}{more} {has}: a program may take that for a replaced file (SQLite does)"]
