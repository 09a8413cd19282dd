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
from waypoint.processes.criu.messages import Field, Message, decode
from waypoint.store import trees
from waypoint.store.entries import Row
from waypoint.store.scan import Cut
from waypoint.store.store import Reader

_PAGEMAP_MAGIC = 0x56084025
_HEAD = Message({"pages_id": Field(1, "uint32")})
_ENTRY = Message(
    {
        "vaddr": Field(1, "uint64"),
        "compat_nr_pages": Field(2, "uint32"),
        "in_parent": Field(3, "bool"),
        "flags": Field(4, "uint32"),
        "nr_pages": Field(5, "uint64"),
    }
)
_PRESENT = 4
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
        self._maps = dict(_maps_in(images))
        self._reader = reader
        self._earlier = earlier

    def __call__(self, path: bytes, fd: int, size: int) -> list[Cut] | None:
        name, runs = self._maps.get(path, (b"", []))
        if not size or sum(run.length for run in runs) != size:  # no file of pages, or not what its map says
            return None
        before = self._before(name)
        return [Cut(run.length, before.get(run.address)) for run in _cut(runs)]

    def _before(self, name: bytes) -> dict[int, bytes]:
        """The digests of the groups of the earlier capture's process with this map, by address."""
        if self._earlier is None:
            return {}
        found = trees.read_path(self._reader, self._earlier, name)
        if found is None:
            return {}
        pages, runs = _parse(trees.read_content(self._reader, found, _MAX_MAP_BYTES), name)
        entry = trees.read_path(self._reader, self._earlier, pages)
        rows: list[Row] = trees.read_rows(self._reader, entry) if entry is not None else []
        return {
            run.address: digest
            for run, (digest, length) in zip(_cut(runs), rows, strict=False)
            if digest is not None and length == run.length
        }


def _maps_in(images: str) -> Iterator[tuple[bytes, tuple[bytes, list[_Run]]]]:
    """By the name of each file of pages, the name and the content of its map."""
    for name in map(os.fsencode, os.listdir(images)):
        if name.startswith(b"pagemap-") and name.endswith(b".img"):
            with open(os.fsencode(images) + b"/" + name, "rb") as file:
                pages, runs = _parse(file.read(), name)
            yield pages, (name, runs)


def _parse(content: bytes, name: bytes) -> tuple[bytes, list[_Run]]:
    """The name of the file of pages of a map, and what that contains; nothing for a map of another format."""
    try:
        head, *entries = parse_messages(content, os.fsdecode(name), _PAGEMAP_MAGIC) or [b""]
        number = decode(_HEAD, head).get("pages_id", 0)
        assert isinstance(number, int)
        return b"pages-%d.img" % number, list(_present(entries))
    except (ValueError, struct.error):
        return b"", []


def _present(entries: list[bytes]) -> Iterator[_Run]:
    for entry in entries:
        values = decode(_ENTRY, entry)
        address, count = values.get("vaddr"), values.get("nr_pages", values.get("compat_nr_pages", 0))
        flags = values.get("flags", 0 if values.get("in_parent") else _PRESENT)
        if not isinstance(address, int) or not isinstance(count, int) or not isinstance(flags, int):
            raise ValueError("a run of pages has no address")
        if flags & _PRESENT:
            yield _Run(address, count * _PAGE)


def _cut(runs: list[_Run]) -> Iterator[_Run]:
    """The runs, cut at multiples of _GROUP."""
    for address, length in runs:
        end = address + length
        while address < end:
            cut = min(end, (address // _GROUP + 1) * _GROUP)
            yield _Run(address, cut - address)
            address = cut
