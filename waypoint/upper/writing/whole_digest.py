"""The digest of a file, or of a folder with all in it: by it content is known again though it was touched, or written
anew.

It covers kind, mode, owner, extended attributes (`file_marks.xattrs_of`) and content; of a folder all that is in it, by
names. Times do not count, nor which names are of one file, nor where a file has holes.
"""

import errno
import os
import stat
import struct
from collections.abc import Mapping

from blake3 import blake3

from waypoint.linux.storage.beneath import name_of
from waypoint.upper.writing.content import NO_FD, Roots, ShownEntry, all_in
from waypoint.upper.writing.file_marks import look, xattrs_of

_ORIGIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 20
_HEAD = struct.Struct("<IIIQQQ")
_COUNT = struct.Struct("<Q")

PartFacts = tuple[int, int, int, int]
"""Mode with the kind of file, owner, group, and the size in bytes, which is 0 for all but regular files."""


def head_of(facts: os.stat_result) -> PartFacts:
    size = facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return facts.st_mode, facts.st_uid, facts.st_gid, size


class WholeDigest:
    """Takes in what belongs to one whole, in any order, and has its digest then."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, path: str, head: PartFacts, xattrs: Mapping[str, bytes], content: bytes | int = b"") -> None:
        """Add what is at `path` in the whole, "": the whole itself. `content`: a link's target, or all that a file has;
        or the file's descriptor, from which that is read. Raises OSError.
        """
        at = path.encode(errors="surrogateescape")
        framed = _HEAD.pack(*head, 1 + 2 * len(xattrs), len(at)) + at
        for name in sorted(xattrs) if xattrs else ():
            for word in (os.fsencode(name), xattrs[name]):
                framed += _COUNT.pack(len(word)) + word
        if isinstance(content, int):
            part = blake3(framed)
            _take_in(part, content)
        else:
            part = blake3(framed + _piece(0, content))
        self._parts.append(part.digest())

    def digest(self) -> bytes:
        return blake3(b"".join(sorted(self._parts))).digest()


def digest_of(folder: int, name: str) -> bytes:
    """The digest of what has the name in the open folder. Reads all that it has. Raises OSError: FileNotFoundError,
    EXDEV if something is mounted in it.
    """
    found = WholeDigest()
    facts = look(folder, name)
    if facts is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    whole = ShownEntry(name, folder, facts, None, name)
    add_entry(found, "", whole)
    if whole.is_folder:
        for path, entry in all_in(Roots(NO_FD, folder), whole, ""):
            add_entry(found, path, entry)
    return found.digest()


def are_same(one: tuple[int, str], other: tuple[int, str]) -> bool:
    """Whether what has the two names, each in an open folder, has the same digest; False if one cannot be read."""
    try:
        return digest_of(*one) == digest_of(*other)
    except OSError:
        return False


def add_entry(whole: WholeDigest, path: str, entry: ShownEntry) -> None:
    """Add what is at `path` in the whole, which is looked at and read; not what is in a folder. Raises OSError."""
    facts, xattrs = entry.facts, xattrs_of(f"{name_of(entry.folder)}/{entry.name}")
    head = head_of(facts)
    if stat.S_ISLNK(facts.st_mode):
        whole.add(path, head, xattrs, os.fsencode(os.readlink(entry.name, dir_fd=entry.folder)))
    elif stat.S_ISREG(facts.st_mode):
        with open(os.open(entry.name, _ORIGIN, dir_fd=entry.folder), "rb", buffering=0) as file:
            whole.add(path, head, xattrs, file.fileno())
    else:
        whole.add(path, head, xattrs)


def _take_in(part: blake3, file: int) -> None:
    place = 0
    while True:
        try:
            place = os.lseek(file, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # which is: a hole up to the end
                raise
            return
        place -= place % _PIECE  # where pieces begin does not depend on where holes are
        data = os.pread(file, _PIECE, place)
        if not data:
            return
        part.update(_piece(place, data))
        place += _PIECE


def _piece(place: int, data: bytes) -> bytes:
    """What is taken in of a part of the content; zeros count as a hole."""
    return _COUNT.pack(place) + data if data.strip(b"\0") else b""
