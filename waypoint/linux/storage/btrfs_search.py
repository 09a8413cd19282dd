"""Items of btrfs's trees by ioctl (linux/btrfs_tree.h). Calls need CAP_SYS_ADMIN and raise OSError with the path."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.calls import ioctls

_IOC_TREE_SEARCH_V2 = 0xC0709411

# btrfs_ioctl_search_args_v2: tree, least and greatest of each part of the key, count of items; size of the buffer
_SEARCH = struct.Struct("<QQQQQQQIII4x32xQ")
_SEARCH_BYTES = 1 << 18
_FOUND = struct.Struct("<QQQII")  # btrfs_ioctl_search_header: transaction, object, offset, type, length
ITEM_HEADER_BYTES = _FOUND.size
_MAX_U32, _MAX_U64 = (1 << 32) - 1, (1 << 64) - 1


class Range(NamedTuple):
    """Items of the objects (inodes) `first` to `last` with types from `least` to `greatest`. `buffer`: bytes for an
    answer, of which one item may need almost a page. `tree`: 0 for the subvolume of the open file. `longest`: of the
    items with their headers (ITEM_HEADER_BYTES) that may follow the first one: an answer with as much space left is the
    last one.
    """

    first: int
    last: int
    least: int
    greatest: int
    buffer: int = _SEARCH_BYTES
    tree: int = 0
    longest: int = _MAX_U32


def search(fd: int, path: str, wanted: Range, transaction: int = 0) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield object, offset, type and data of items. Among them are some of other types, and some of parts of the tree
    that have not changed since `transaction`.
    """
    key = (wanted.first, wanted.least, 0)
    while True:
        arguments = _SEARCH.pack(
            *(wanted.tree, key[0], wanted.last, key[2], _MAX_U64, transaction, _MAX_U64, key[1], wanted.greatest),
            *(_MAX_U32, wanted.buffer),
        )
        answer = call(fd, _IOC_TREE_SEARCH_V2, arguments + bytes(wanted.buffer), "TREE_SEARCH_V2", path)
        count, place = _SEARCH.unpack_from(answer)[9], _SEARCH.size
        if not count:
            return
        for _ in range(count):
            _, item, offset, kind, length = _FOUND.unpack_from(answer, place)
            place += _FOUND.size
            yield item, offset, kind, answer[place : place + length]
            place += length
            key = (item, kind, offset)
        if len(answer) - place >= wanted.longest:
            return
        if key[2] < _MAX_U64:
            key = (key[0], key[1], key[2] + 1)
        elif key[1] < 255:
            key = (key[0], key[1] + 1, 0)
        else:
            key = (key[0] + 1, 0, 0)


def call(fd: int, number: int, arguments: bytes, name: str, path: str) -> bytes:
    """Call the ioctl BTRFS_IOC_`name`; return its arguments as the kernel has changed them."""
    buffer = bytearray(arguments)
    ioctls.ioctl(fd, number, buffer, name=f"BTRFS_IOC_{name}", path=path)
    return bytes(buffer)
