"""Cutting files into DATA objects by content, so that equal parts are found again although something before them has
changed (FastCDC: Xia et al., USENIX ATC 2016). Holes are kept.

How a file is cut is no part of the format: any rows can be read. But equal files get equal digests only if they are
cut alike.
"""

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

MAX_WHOLE_BYTES = 256 << 10
"""Files up to this size are one object."""
_MIN, _USUAL, _MAX = 128 << 10, 512 << 10, 1 << 20
_WINDOW_BYTES = 8 << 20


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


def pieces(fd: int, offset: int, length: int) -> Iterator[bytes]:
    """The content of a part of the open file, in pieces."""
    if length <= MAX_WHOLE_BYTES:
        yield read_at(fd, offset, length)
        return
    from pyfastcdc import FastCDC  # takes 20 ms, and most runs have no large file

    cutter, rest = FastCDC(avg_size=_USUAL, min_size=_MIN, max_size=_MAX), b""
    while length:
        more = read_at(fd, offset, min(length, _WINDOW_BYTES - len(rest)))
        offset, length = offset + len(more), length - len(more)
        window = rest + more
        cuts = [chunk.length for chunk in cutter.cut_buf(window)]
        if length:  # where the last piece ends depends on what follows
            cuts.pop()
        place = 0
        for cut in cuts:
            yield window[place : place + cut]
            place += cut
        rest = window[place:]


def read_at(fd: int, offset: int, length: int) -> bytes:
    """Exactly `length` bytes. Raises OSError ESTALE if the file is shorter: it has changed meanwhile."""
    content = os.pread(fd, length, offset)
    while len(content) < length:
        more = os.pread(fd, length - len(content), offset + len(content))
        if not more:
            raise OSError(errno.ESTALE, "a file has become shorter while it was being read")
        content += more
    return content
