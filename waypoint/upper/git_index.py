"""What a git index says. git writes the index anew when it only looks at the working tree, because the index notes
times and inodes of the files; such a change must not count.
"""

import hashlib
import os
import stat
import struct

from waypoint.upper.comparing import READ_FILE
from waypoint.upper.views import Entry

_MOST_BYTES = 256 << 20
_HEADER = struct.Struct(">4sII")  # signature, version, number of entries
_EXTENSION = struct.Struct(">4sI")  # signature, size
_EXTENDED = 0x4000  # in the flags of an entry: two more bytes of flags follow


def is_index(path: str) -> bool:
    """Whether a file at this path may be the index of a repository, a submodule or a worktree."""
    return path.endswith("/index") and ".git" in path.split("/")


def digest_of(entry: Entry) -> bytes:
    """The digest of the index at `entry`; b"" if there is none. Raises OSError."""
    facts = entry.look()
    if facts is None or not stat.S_ISREG(facts.st_mode) or facts.st_size > _MOST_BYTES:
        return b""
    with open(os.open(entry.name, READ_FILE, dir_fd=entry.folder), "rb") as file:
        return digest(file.read(_MOST_BYTES))


def digest(index: bytes) -> bytes:
    """A digest of the index (gitformat-index(5)) without what git notes about the files of the working tree, and
    without optional extensions. b"" if it is no index.
    """
    for id_bytes in (20, 32):  # SHA-1, SHA-256: only the repository's configuration says which
        try:
            return _digest(index, id_bytes)
        except (ValueError, IndexError, struct.error):
            continue
    return b""


def _digest(index: bytes, id_bytes: int) -> bytes:
    """Raises ValueError or struct.error if this is no index with ids of this size."""
    found = hashlib.sha256()
    signature, version, count = _HEADER.unpack_from(index)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError(signature)
    place, end = _HEADER.size, len(index) - id_bytes  # the last bytes are a checksum
    for _ in range(count):
        flags_at = place + 40 + id_bytes
        (flags,) = struct.unpack_from(">H", index, flags_at)
        name_at = flags_at + (4 if flags & _EXTENDED else 2)
        found.update(index[place + 24 : place + 28])  # the mode, among times, device, inode, owner and size
        found.update(index[place + 40 : name_at])
        while version == 4 and index[name_at] & 0x80:  # the name begins with a number of variable size
            name_at += 1
        name_end = index.index(b"\0", name_at + (version == 4), end) + 1
        found.update(index[flags_at + 2 : name_end])
        place = name_end if version == 4 else place + (name_end - place + 7) // 8 * 8
    while place < end:
        signature, size = _EXTENSION.unpack_from(index, place)
        if not signature[:1].isupper():  # git must understand this extension
            found.update(index[place : place + _EXTENSION.size + size])
        place += _EXTENSION.size + size
    if place != end:
        raise ValueError(place)
    return found.digest()
