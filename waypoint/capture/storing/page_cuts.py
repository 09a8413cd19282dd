"""Where CRIU's images of memory are cut: at addresses, so that a page is found again in the next capture of its process
and in those of its copies, wherever it lies in the file.

Source: CRIU's images/pagemap.proto, criu/pagemap.c: `pages-N.img` has the pages that are present, one after the other
in the order of the entries of the `pagemap-*.img` whose head has the number N.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.processes.criu.lists import parse_messages, read_messages
from waypoint.processes.criu.messages import Field, Message, decode
from waypoint.store.trees.earlier import Earlier, NamePath
from waypoint.store.trees.gathering import CutAt

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
"""What is cut at: multiples of this. So a page that differs takes a difference from 64 KiB."""


class _Run(NamedTuple):
    """Bytes of memory that lie one after the other in the file of pages: from which address on, and how many."""

    address: int
    length: int


class PageCuts:
    """A CutUp (store/trees/gathering.py) for a folder of CRIU's images."""

    def __init__(self, images_fd: int, earlier: Earlier) -> None:
        """`images_fd`: the folder. `earlier`: the images of an earlier capture, in the store. Raises OSError,
        StoreDamaged.
        """
        self._maps = dict(_maps(images_fd))
        self._before = {name: _addresses(earlier, name) for name, _ in self._maps.values()}

    def __call__(self, path: NamePath, fd: int, size: int) -> list[CutAt] | None:
        """Of a file that has pages, and no others than its map says: where to cut it."""
        name, runs = self._maps.get(path[-1], ("", []))
        if len(path) != 1 or size == 0 or sum(run.length for run in runs) != size:
            return None
        before = self._before[name]
        return [(run.length, before.get(run.address)) for run in _cut(runs)]


def _maps(images_fd: int) -> Iterator[tuple[bytes, tuple[str, list[_Run]]]]:
    """By the name of each file of pages, the name of its map and what this says."""
    for name in os.listdir(images_fd):
        if name.startswith("pagemap-") and name.endswith(".img"):
            pages, runs = _understood(read_messages(images_fd, name, _PAGEMAP_MAGIC))
            yield pages, (name, runs)


def _understood(messages: list[bytes]) -> tuple[bytes, list[_Run]]:
    """The name of the file of pages of a map, and what is in it. Raises ValueError."""
    head, *entries = messages or [b""]
    number = decode(_HEAD, head).get("pages_id", 0)
    assert isinstance(number, int)
    return b"pages-%d.img" % number, list(_present(entries))


def _present(entries: list[bytes]) -> Iterator[_Run]:
    """Raises ValueError."""
    for entry in entries:
        values = decode(_ENTRY, entry)
        if "vaddr" not in values:
            raise ValueError("a run of pages has no address")
        count = values.get("nr_pages", values.get("compat_nr_pages", 0))
        address, flags = values["vaddr"], values.get("flags", 0 if values.get("in_parent") else _PRESENT)
        assert isinstance(address, int)
        assert isinstance(count, int)
        assert isinstance(flags, int)
        if flags & _PRESENT:
            yield _Run(address, count * _PAGE)


def _cut(runs: list[_Run]) -> Iterator[_Run]:
    """The runs, none of which goes over a multiple of _GROUP."""
    for address, length in runs:
        end = address + length
        while address < end:
            cut = min(end, (address // _GROUP + 1) * _GROUP)
            yield _Run(address, cut - address)
            address = cut


def _addresses(earlier: Earlier, name: str) -> dict[int, bytes]:
    """By the address of each piece of memory that the earlier capture has in the file of this map, the digest of its
    object; nothing if it has no such map.
    """
    content = earlier.read([name.encode()])
    if not content:
        return {}
    pages, runs = _understood(parse_messages(content, name, _PAGEMAP_MAGIC))
    pieces = earlier.content([pages])
    return {
        run.address: digest
        for run, (digest, length) in zip(_cut(runs), pieces, strict=False)
        if digest is not None and length == run.length
    }
