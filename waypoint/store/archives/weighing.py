"""What folders of an archive contain, found without extracting them.

The archive may be hostile: a folder may contain the same folder many times, so each one is read once.
"""

import stat
from enum import IntFlag
from typing import NamedTuple

from waypoint.store import entries, trees
from waypoint.store.entries import TreeEntry
from waypoint.store.objects import Kind
from waypoint.store.store import Reader

_WHITEOUT = bytes(8)


class Odd(IntFlag):
    """What a folder contains besides files and folders. PRIVILEGED: files with setuid, setgid or capabilities."""

    SYMLINK = 1
    SPECIAL = 2
    WHITEOUT = 4
    DEVICE = 8
    PRIVILEGED = 16


class Weight(NamedTuple):
    """`names`: how many files and folders. `size`: bytes of the files, without holes."""

    names: int = 0
    size: int = 0
    odd: Odd = Odd(0)

    def plus(self, other: "Weight") -> "Weight":
        return Weight(self.names + other.names, self.size + other.size, self.odd | other.odd)


class Weights:
    """Weighs folders. Raises StoreDamaged if a folder refers to a missing object, or states a wrong size."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[bytes, Weight] = {}

    def of(self, root: bytes) -> Weight:
        """The weight of a ROOT."""
        found = trees.read_root(self._reader, root)
        trees.read_links(self._reader, found)
        return self.of_folder(found.entry)

    def of_folder(self, folder: TreeEntry) -> Weight:
        waiting = [folder]
        while waiting:
            content = trees.read_entries(self._reader, waiting[-1])
            below = [one for one in content if one.type == entries.FOLDER]
            unknown = [one for one in below if _key(one) not in self._known]
            if unknown:
                waiting += unknown
                continue
            weight = Weight()
            for entry in content:
                weight = weight.plus(self._of_entry(entry))
            self._known[_key(waiting.pop())] = weight
        return self._known[_key(folder)]

    def _of_entry(self, entry: TreeEntry) -> Weight:
        odd = Odd(0)
        if entry.type == entries.FOLDER:
            return self._known[_key(entry)].plus(Weight(1))
        if entry.type == entries.FILE:
            if entry.mode & (stat.S_ISUID | stat.S_ISGID) or any(
                name == b"security.capability" for name, _ in entry.xattrs
            ):
                odd = Odd.PRIVILEGED
            return Weight(1, self._check_file(entry), odd)
        if entry.type == entries.SYMLINK:
            odd = Odd.SYMLINK
        elif entry.type == entries.CHARACTER and entry.text == _WHITEOUT:
            odd = Odd.WHITEOUT
        else:
            odd = Odd.SPECIAL if entry.type in (entries.FIFO, entries.SOCKET) else Odd.DEVICE
        return Weight(1, 0, odd)

    def _check_file(self, entry: TreeEntry) -> int:
        """The bytes of a file. Its parts must exist with the lengths that its record says."""
        size = 0
        for digest, length in trees.read_rows(self._reader, entry):
            if digest is None:
                continue
            found = self._reader.find(self._reader.address(digest))
            if found is None or (found.kind, found.length) != (Kind.DATA, length):
                raise trees.damaged(f"a part of the file {entry.name!r} is missing or has another length")
            size += length
        return size


def _key(folder: TreeEntry) -> bytes:
    return entries.encode(folder.rows)
