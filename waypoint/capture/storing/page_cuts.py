"""Where CRIU's images of memory are cut: at addresses, so that equal memory is found again in the next capture of its
process, and in those of its copies, wherever it lies in the file.

`pages-N.img` has the present pages one after the other, in the order of the entries of the `pagemap-*.img` whose head
has the number N (CRIU's images/pagemap.proto, criu/pagemap.c).
"""

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.processes.criu.image_files import parse_messages
from waypoint.processes.criu.messages import decode
from waypoint.processes.criu.page_maps import ENTRY, HEAD, PAGEMAP_MAGIC, PARENT, PRESENT
from waypoint.store import trees
from waypoint.store.entries import Row
from waypoint.store.scan import Cut
from waypoint.store.store import Reader

_PARENT = os.fsencode(f"{PARENT}/")
_PAGE = 4096
_GROUP = 16 * _PAGE
"""Memory is cut at multiples of this address, and a group in which a page has changed is stored as the difference."""
_MAX_MAP_BYTES = 64 << 20


class _Run(NamedTuple):
    """Memory that lies in one piece in the file of pages."""

    address: int
    length: int


class PageCuts:
    """A `CutFile` (store/scan.py) for a folder of CRIU's images."""

    def __init__(self, images: str, reader: Reader, earlier: bytes | None) -> None:
        """`earlier`: the ROOT of the images of an earlier capture."""
        self._maps = dict(one for folder in (b"", _PARENT) for one in _maps_in(images, folder))
        self._reader = reader
        self._earlier = earlier

    def __call__(self, path: bytes, fd: int, size: int) -> list[Cut] | None:
        name, runs = self._maps.get(path, (b"", []))
        if not size or sum(run.length for run in runs) != size:  # no file of pages, or not what its map says
            return None
        before = self._before(name)
        return [Cut(run.length, before.get(run.address)) for run in _cut(runs)]

    def _before(self, path: bytes) -> dict[int, bytes]:
        """The digests of the groups of the earlier capture's process with the map at `path`, by address. Its memory may
        be in the folder of parent images.
        """
        found: dict[int, bytes] = {}
        if self._earlier is not None:
            for folder in (_PARENT, b""):
                found |= self._groups(self._earlier, folder, os.path.basename(path))
        return found

    def _groups(self, images: bytes, folder: bytes, name: bytes) -> dict[int, bytes]:
        found = trees.read_path(self._reader, images, folder + name)
        if found is None:
            return {}
        pages, runs = _parse(trees.read_content(self._reader, found, _MAX_MAP_BYTES), name)
        entry = trees.read_path(self._reader, images, folder + pages)
        rows: list[Row] = trees.read_rows(self._reader, entry) if entry is not None else []
        return {
            run.address: digest
            for run, (digest, length) in zip(_cut(runs), rows, strict=False)
            if digest is not None and length == run.length
        }


def _maps_in(images: str, folder: bytes) -> Iterator[tuple[bytes, tuple[bytes, list[_Run]]]]:
    """By the path of each file of pages in `folder`, the path and the content of its map. `images` itself may be a
    link, to the images in memory.
    """
    place = os.path.join(os.fsencode(images), folder)
    is_link = folder and os.path.islink(place.rstrip(b"/"))
    for name in os.listdir(place) if os.path.isdir(place) and not is_link else ():
        if name.startswith(b"pagemap-") and name.endswith(b".img"):
            with open(os.path.join(place, name), "rb") as file:
                pages, runs = _parse(file.read(), name)
            yield folder + pages, (folder + name, runs)


def _parse(content: bytes, name: bytes) -> tuple[bytes, list[_Run]]:
    """The name of the file of pages of a map, and what that contains; nothing for a map of another format."""
    try:
        head, *entries = parse_messages(content, os.fsdecode(name), PAGEMAP_MAGIC) or [b""]
        number = decode(HEAD, head).get("pages_id", 0)
        assert isinstance(number, int)
        return b"pages-%d.img" % number, list(_present(entries))
    except (ValueError, struct.error):
        return b"", []


def _present(entries: list[bytes]) -> Iterator[_Run]:
    for entry in entries:
        values = decode(ENTRY, entry)
        address, count = values.get("vaddr"), values.get("nr_pages", values.get("compat_nr_pages", 0))
        flags = values.get("flags", 0 if values.get("in_parent") else PRESENT)
        if not isinstance(address, int) or not isinstance(count, int) or not isinstance(flags, int):
            raise ValueError("a run of pages has no address")
        if flags & PRESENT:
            yield _Run(address, count * _PAGE)


def _cut(runs: list[_Run]) -> Iterator[_Run]:
    """The runs, cut at multiples of _GROUP."""
    for address, length in runs:
        end = address + length
        while address < end:
            cut = min(end, (address // _GROUP + 1) * _GROUP)
            yield _Run(address, cut - address)
            address = cut
