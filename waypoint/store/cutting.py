"""Cutting files into DATA objects by content, so that equal parts are found again although something before them has
changed (FastCDC: Xia et al., USENIX ATC 2016). Holes are kept.

How a file is cut is no part of the format: any rows can be read. But equal files get equal digests only if they are
cut alike.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from waypoint.store.objects import Buffer

MAX_WHOLE_BYTES = 256 << 10
"""Files up to this size are one object."""
_MIN, _USUAL, _MAX = 128 << 10, 512 << 10, 1 << 20
WINDOW_BYTES = 8 << 20


class Extent(NamedTuple):
    """A part of a file: data or a hole."""

    offset: int
    length: int
    is_hole: bool


def extents(fd: int, facts: os.stat_result) -> Iterator[Extent]:
    """The parts of the open file, in order (lseek(2), SEEK_DATA)."""
    place, size = 0, facts.st_size
    if facts.st_blocks * 512 >= size > 0:
        yield Extent(0, size, is_hole=False)
        return
    while place < size:
        try:
            data = os.lseek(fd, place, os.SEEK_DATA)
            hole = os.lseek(fd, data, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no data after `place`
                raise
            data = hole = size
        data, hole = min(data, size), min(hole, size)
        if data > place:
            yield Extent(place, data - place, is_hole=True)
        if hole > data:
            yield Extent(data, hole - data, is_hole=False)
        place = hole


def pieces(fd: int, offset: int, length: int) -> Iterator[Buffer]:
    """The content of a part of the open file, in pieces."""
    if length <= MAX_WHOLE_BYTES:
        yield read_at(fd, offset, length)
        return
    from pyfastcdc import FastCDC  # takes 20 ms, and most runs have no large file

    cutter, end = FastCDC(avg_size=_USUAL, min_size=_MIN, max_size=_MAX), offset + length
    while offset < end:
        window = read_at(fd, offset, min(end - offset, WINDOW_BYTES))
        cuts = [chunk.length for chunk in cutter.cut_buf(window)]
        if offset + len(window) < end:  # where the last piece ends depends on what follows
            cuts.pop()
        yield from split(window, cuts)
        offset += sum(cuts)


def split(window: bytes, lengths: Iterable[int]) -> Iterator[memoryview]:
    """The parts of the window, without copying them."""
    view, place = memoryview(window), 0
    for length in lengths:
        yield view[place : place + length]
        place += length


def read_at(fd: int, offset: int, length: int) -> bytes:
    """Exactly `length` bytes; the kernel is asked to read what follows. Raises OSError ESTALE if the file is shorter:
    it has changed meanwhile.
    """
    content = os.pread(fd, length, offset)
    while len(content) < length:
        more = os.pread(fd, length - len(content), offset + len(content))
        if not more:
            raise OSError(errno.ESTALE, "a file has become shorter while it was being read")
        content += more
    if length > MAX_WHOLE_BYTES:
        os.posix_fadvise(fd, offset + length, WINDOW_BYTES, os.POSIX_FADV_WILLNEED)
    return content
