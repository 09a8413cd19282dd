"""The blocks of btrfs's trees, read from the disk of a mounted file system (btrfs-dev-docs, on-disk-format).

The kernel has no call for them. A block never changes in place: a change writes a new block, and the old one is free
after the commit. It begins with its own address and the number of the transaction that wrote it, and so does the
pointer to it in the block above. So a block that was used again is recognised (Changed), and the caller begins again.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple, Self

from waypoint.linux.storage.btrfs_search import Range, call, search
from waypoint.linux.storage.descriptors import open_folder

_IOC_FS_INFO, _IOC_DEV_INFO = 0x8400941F, 0xD000941E
_BLOCK_SIZE = struct.Struct("<32xI988x")  # btrfs_ioctl_fs_info_args: ..., nodesize, ...
_DEVICE = struct.Struct("<Q3064x1024s")  # btrfs_ioctl_dev_info_args: devid, ..., path
_CHUNK_TREE, _CHUNKS, _CHUNK_ITEM = 3, 256, 228
_CHUNK = struct.Struct("<Q16xQ16xQQ")  # btrfs_chunk: length, ..., type, ..., the first stripe's devid and offset
_STRIPED = 1 << 3 | 1 << 6 | 1 << 7 | 1 << 8  # RAID0, RAID10, RAID5, RAID6: the first stripe is not the whole chunk
_MAX_READ, _MAX_GAP = 1 << 20, 1 << 16  # blocks nearby are read by one call, with what is between them
# btrfs_header: ..., address, flags, ..., transaction, owner, count of items, level. Then btrfs_key_ptr: key, address,
# transaction; or btrfs_item: inode, type, offset, place and size of the data, counted from here
_HEADER = struct.Struct("<48xQQ16xQQIB")
_POINTER, _ITEM = struct.Struct("<17xQQ"), struct.Struct("<QBQII")


class Changed(Exception):
    """A block has been used for something else meanwhile."""


class Block(NamedTuple):
    """`content`: all bytes of the block, valid until the next one is read. `length`: how many pointers or items."""

    address: int
    content: memoryview
    length: int

    def pointers(self) -> Iterator[tuple[int, int]]:
        """Address and transaction of each block below. Not for a block of level 0."""
        return _POINTER.iter_unpack(self.content[_HEADER.size : _HEADER.size + self.length * _POINTER.size])

    def items(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Inode, type, offset, and place and size in `content` of each item. Only for a block of level 0."""
        for inode, kind, offset, place, size in _ITEM.iter_unpack(
            self.content[_HEADER.size : _HEADER.size + self.length * _ITEM.size]
        ):
            yield inode, kind, offset, _HEADER.size + place, size


class Disk:
    """The blocks of the file system under `folder`, as a context manager. `block_size`: bytes of each block.

    Raises OSError if the disk cannot be read, and if its blocks are striped over several disks (EOPNOTSUPP).
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._closing = ExitStack()
        self._files: dict[int, int] = {}
        self._buffer = mmap.mmap(-1, _MAX_READ)  # at a page's start, as O_DIRECT demands

    def __enter__(self) -> Self:
        self._fd = self._closing.enter_context(open_folder(self._folder))
        (self.block_size,) = _BLOCK_SIZE.unpack(
            call(self._fd, _IOC_FS_INFO, bytes(_BLOCK_SIZE.size), "FS_INFO", self._folder)
        )
        wanted = Range(_CHUNKS, _CHUNKS, _CHUNK_ITEM, _CHUNK_ITEM, tree=_CHUNK_TREE)
        found = search(self._fd, self._folder, wanted)
        self._chunks = [(begin, *_CHUNK.unpack_from(data)) for _, begin, kind, data in found if kind == _CHUNK_ITEM]
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def read(self, wanted: dict[int, int], level: int) -> Iterator[Block]:
        """Yield the blocks, in the order of their places on the disk. `wanted`: by address, the transaction that wrote
        the block. Raises Changed.
        """
        places = sorted((*self._place(address), address) for address in wanted)
        first = 0
        while first < len(places):
            device, begin, _ = places[first]
            last = first
            while last + 1 < len(places) and self._is_near(places[first], places[last], places[last + 1]):
                last += 1
            content = self._content(device, begin, places[last][1] + self.block_size - begin)
            for _, place, address in places[first : last + 1]:
                block = content[place - begin : place - begin + self.block_size]
                there, _, transaction, _, count, its_level = _HEADER.unpack_from(block)
                if (there, transaction, its_level) != (address, wanted[address], level):
                    raise Changed
                yield Block(address, block, count)
            first = last + 1

    def _is_near(self, first: tuple[int, int, int], last: tuple[int, int, int], one: tuple[int, int, int]) -> bool:
        return (
            one[0] == first[0]
            and one[1] - last[1] <= self.block_size + _MAX_GAP
            and one[1] + self.block_size - first[1] <= _MAX_READ
        )

    def _place(self, address: int) -> tuple[int, int]:
        """The device of a block, and the place on it."""
        for begin, length, kind, device, offset in self._chunks:
            if begin <= address < begin + length:
                if kind & _STRIPED:
                    raise OSError(95, "the blocks are striped over several disks", self._folder)
                return device, offset + address - begin
        raise Changed

    def _content(self, device: int, place: int, size: int) -> memoryview:
        if device not in self._files:
            answer = call(self._fd, _IOC_DEV_INFO, _DEVICE.pack(device, b""), "DEV_INFO", self._folder)
            path = _DEVICE.unpack(answer)[1].partition(b"\0")[0]
            # Not through the page cache of the device, which the file system's own writes pass by.
            self._files[device] = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            self._closing.callback(os.close, self._files[device])
        content = memoryview(self._buffer)[:size]
        if os.preadv(self._files[device], [content], place) != size:
            raise Changed
        return content
