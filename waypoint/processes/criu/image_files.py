"""CRIU's image files of many messages: two magic numbers, then for each message its size and its content.

Numbers have 32 bits, little-endian. The magic numbers are in criu/include/magic.h of CRIU's source.
"""

import os
import struct
from collections.abc import Iterable, Mapping

from waypoint.processes.criu.messages import IRMAP_ENTRY, encode

FILES, FILES_MAGIC = "files.img", 0x56303138
PSTREE, PSTREE_MAGIC = "pstree.img", 0x50273030
LOCKS, LOCKS_MAGIC = "filelocks.img", 0x54323616
NAMES, _NAMES_MAGIC = "irmap-cache", 0x57004059
"""The names of watched files, in a dump's work folder."""
_COMMON_MAGIC, _SERVICE_MAGIC = 0x54564319, 0x55105940
_MAGIC = struct.Struct("<II")
_SIZE = struct.Struct("<I")


def read_messages(images_fd: int, name: str, magic: int) -> list[bytes]:
    """The messages in the image `name`; empty if there is no such image. Raises OSError; ValueError if the magic number
    is another one.
    """
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=images_fd)
    except FileNotFoundError:
        return []
    with open(fd, "rb") as file:
        return parse_messages(file.read(), name, magic)


def parse_messages(content: bytes, name: str, magic: int) -> list[bytes]:
    """The messages in the content of the image `name`. Raises ValueError."""
    place = _MAGIC.size
    if content[:place] != _MAGIC.pack(_COMMON_MAGIC, magic):
        raise ValueError(f"{name} contains another kind of image than its name says")
    messages = []
    while place < len(content):
        (size,) = _SIZE.unpack_from(content, place)
        place += _SIZE.size + size
        messages.append(content[place - size : place])
    return messages


def write_messages(images_fd: int, name: str, magic: int, messages: Iterable[bytes]) -> None:
    """Write or replace the image `name`. Raises OSError."""
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=images_fd)
    with open(fd, "wb") as file:
        file.write(_MAGIC.pack(_COMMON_MAGIC, magic))
        for message in messages:
            file.write(_SIZE.pack(len(message)) + message)


def add_names(work_fd: int, names: Mapping[tuple[int, int], str]) -> None:
    """Add names of watched files for the dump with the work folder `work_fd`. To be called before `Dump.go`. CRIU
    refuses a watched file whose handle it cannot open and whose name is not given.

    `names`: by device and inode as numbered by the kernel, the file's path from the root of the tree's mount namespace.
    If the file at that path has other numbers, CRIU searches for the file below /etc and other folders. Raises OSError.
    """
    if not names:
        return
    parts = []
    for (device, inode), path in names.items():
        message = encode(IRMAP_ENTRY, {"dev": device, "inode": inode, "path": path})
        parts += [_SIZE.pack(len(message)), message]
    fd = os.open(NAMES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600, dir_fd=work_fd)
    with open(fd, "ab") as file:
        if not file.tell():
            file.write(_MAGIC.pack(_SERVICE_MAGIC, _NAMES_MAGIC))
        file.write(b"".join(parts))
