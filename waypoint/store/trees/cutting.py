"""Where content is cut into objects, so that what stays the same is found again though something before it has changed.

Cutting by content: FastCDC (Xia et al., USENIX ATC 2016), as the library pyfastcdc has it. The store can read whatever
was cut in whatever way, so another way may take its place.
"""

import errno
import functools
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

MOST_WHOLE = 256 << 10
"""A file of so many bytes is one object."""
_LEAST, _USUAL, _MOST = 128 << 10, 512 << 10, 1 << 20
_WINDOW = 8 << 20
"""Bytes that are read at a time."""


class Extent(NamedTuple):
    """A part of a file that has data, or is a hole."""

    offset: int
    length: int
    is_hole: bool


def extents(fd: int, size: int) -> Iterator[Extent]:
    """The parts of the open file, in their order (lseek(2), SEEK_DATA). Where the file system does not tell, a file has
    no holes. Moves the offset of `fd`. Raises OSError.
    """
    place = 0
    while place < size:
        try:
            data = os.lseek(fd, place, os.SEEK_DATA)
            hole = os.lseek(fd, data, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # which is: no data behind it
                raise
            data = hole = size
        data, hole = min(data, size), min(hole, size)
        if data > place:
            yield Extent(place, data - place, is_hole=True)
        if hole > data:
            yield Extent(data, hole - data, is_hole=False)
        place = hole


def pieces(fd: int, offset: int, length: int) -> Iterator[bytes]:
    """The content of a part of the open file, cut. Raises OSError, EOFError if the file is shorter."""
    if length <= MOST_WHOLE:
        yield read_at(fd, offset, length)
        return
    rest = b""
    while length:
        more = read_at(fd, offset, min(length, _WINDOW - len(rest)))
        offset, length = offset + len(more), length - len(more)
        window = rest + more
        cuts = _cutter()(window)
        if length:  # where the last one ends depends on what follows
            cuts.pop()
        place = 0
        for cut in cuts:
            yield window[place : place + cut]
            place += cut
        rest = window[place:]


@functools.cache
def _cutter() -> Callable[[bytes], list[int]]:
    """A function that tells the lengths of the pieces."""
    from pyfastcdc import FastCDC  # not loaded by who only reads

    cutter = FastCDC(avg_size=_USUAL, min_size=_LEAST, max_size=_MOST)
    return lambda window: [chunk.length for chunk in cutter.cut_buf(window)]


def read_at(fd: int, offset: int, length: int) -> bytes:
    """Exactly `length` bytes. Raises OSError, EOFError if there are fewer."""
    content = os.pread(fd, length, offset)
    while len(content) < length:
        more = os.pread(fd, length - len(content), offset + len(content))
        if not more:
            raise EOFError
        content += more
    return content
