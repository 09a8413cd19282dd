"""Open files whose name was removed while another name of the file stays.

CRIU would give such a file a name for the time of the dump, which changes its folder in the running session and is
noticed by programs that watch the folder. With Waypoint's patch (criu/patches/22-no-link.patch) CRIU copies the file
as if it had no name, a "ghost". Here the ghost is replaced by the other name, so that in a copy of the session, too,
the open file and the named one are the same. CRIU needs a name that it may remove: `make_names` makes it in the files
of the copy, before they are mounted.

Formats: images/{fdinfo,regfile,remap-file-path,ghost-file}.proto in CRIU's source.
"""

import contextlib
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from waypoint.linux.storage import beneath
from waypoint.processes.criu.ghosts import GHOST, REMAP, REMAPS, REMAPS_MAGIC
from waypoint.processes.criu.image_files import FILES, FILES_MAGIC, read_messages, write_messages
from waypoint.processes.criu.messages import Field, Message, Value, decode, encode

_LIST = "linked-files"
"""A file beside the images: for each open file its name in the upper tree, and the name to make, each ending in NUL."""
_LINKED = 0  # remap_type
_FIRST_FILE = 0x40000000  # CRIU numbers files from 1
_REG = 1  # fd_types
_HEADER = struct.Struct("<III")  # two magic numbers and the size of the first message

_GHOST_FILE = Message(
    {
        "mode": Field(3, "uint32"),
        "ino": Field(5, "uint64"),
        "mtim": Field(8, Message({"tv_sec": Field(1, "uint64"), "tv_usec": Field(2, "uint64")})),
        "size": Field(10, "uint64"),
    }
)
_OWNER = Message(
    {name: Field(number, "uint32") for number, name in enumerate(("uid", "euid", "signum", "type", "pid"), 1)}
)
_FILE = Message(
    {
        "type": Field(1, "uint32"),
        "id": Field(2, "uint32"),
        "reg": Field(
            3,
            Message(
                {
                    "id": Field(1, "uint32"),
                    "flags": Field(2, "uint32"),
                    "pos": Field(3, "uint64"),
                    "fown": Field(5, _OWNER),
                    "name": Field(6, "string"),
                }
            ),
        ),
    }
)


class Place(NamedTuple):
    """A name of a file: `below` the upper tree, and its `path` in the session."""

    below: str
    path: str


def needs_names(images_fd: int) -> bool:
    """Whether CRIU has named an open file for the time of the dump."""
    remaps = read_messages(images_fd, REMAPS, REMAPS_MAGIC)
    return any(decode(REMAP, remap).get("remap_type") == _LINKED for remap in remaps)


def use_names(images_fd: int, tree: int, places: Callable[[int], Iterable[Place]]) -> None:
    """Change the images of a complete dump: each ghost that has a name in the captured files is opened by that name.

    `tree`: the captured upper tree. `places`: the names in it of the file with this inode. Raises OSError; ValueError
    if an image is malformed.
    """
    remaps = [decode(REMAP, remap) for remap in read_messages(images_fd, REMAPS, REMAPS_MAGIC)]
    names, entries = bytearray(), []
    for ghost in sorted({_number(remap["remap_id"]) for remap in remaps if remap.get("remap_type") == GHOST}):
        place = next(_same(images_fd, f"ghost-file-{ghost:x}.img", tree, places), None)
        if place is None:
            continue
        number = _FIRST_FILE + ghost
        name = f"link_remap.{number}"
        below, path = (os.path.join(os.path.dirname(one), name) for one in place)
        names += b"".join(os.fsencode(one) + b"\0" for one in (place.below, below))
        owner: dict[str, Value] = dict.fromkeys(_OWNER.fields, 0)
        reg: dict[str, Value] = {"id": number, "flags": 0, "pos": 0, "fown": owner, "name": path}
        entries.append(encode(_FILE, {"type": _REG, "id": number, "reg": reg}))
        for remap in remaps:
            if (remap.get("remap_type"), remap["remap_id"]) == (GHOST, ghost):
                remap |= {"remap_id": number, "remap_type": _LINKED}
        os.unlink(f"ghost-file-{ghost:x}.img", dir_fd=images_fd)
    if entries:
        write_messages(images_fd, FILES, FILES_MAGIC, read_messages(images_fd, FILES, FILES_MAGIC) + entries)
        write_messages(images_fd, REMAPS, REMAPS_MAGIC, [encode(REMAP, remap) for remap in remaps])
        with open(os.open(_LIST, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=images_fd), "wb") as file:
            file.write(names)


def make_names(images_fd: int, tree: int) -> None:
    """Make the names that the restore of the images opens and then removes. `tree`: a writable copy of the captured
    upper tree. Raises OSError.
    """
    try:
        fd = os.open(_LIST, os.O_RDONLY | os.O_CLOEXEC, dir_fd=images_fd)
    except FileNotFoundError:
        return
    with open(fd, "rb") as file:
        names = [os.fsdecode(name) for name in file.read().split(b"\0")[:-1]]
    for have, make in zip(names[::2], names[1::2], strict=True):
        with beneath.parent_of(tree, have) as (folder, name), contextlib.suppress(FileExistsError):
            os.link(name, os.path.basename(make), src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)


def _same(images_fd: int, image: str, tree: int, places: Callable[[int], Iterable[Place]]) -> Iterator[Place]:
    """The names of the file in the image of a ghost. An inode of a lower layer may have the number of another file of
    the upper tree, so the files' facts are compared.
    """
    with open(os.open(image, os.O_RDONLY | os.O_CLOEXEC, dir_fd=images_fd), "rb") as file:
        _, _, size = _HEADER.unpack(file.read(_HEADER.size))
        ghost = decode(_GHOST_FILE, file.read(size))
        content_bytes = os.fstat(file.fileno()).st_size - file.tell()
    mtim = ghost.get("mtim")
    if stat.S_ISDIR(_number(ghost["mode"])) or not isinstance(mtim, dict):
        return
    wanted = _number(ghost["mode"]), _number(mtim["tv_sec"]) * 10**6 + _number(mtim["tv_usec"])
    for place in places(_number(ghost.get("ino"))):
        with beneath.opened(tree, place.below, os.O_PATH | os.O_NOFOLLOW) as fd:
            found = os.fstat(fd)
        is_file = stat.S_ISREG(found.st_mode)
        if (found.st_mode, found.st_mtime_ns // 1000) == wanted and (
            not is_file or found.st_size == _number(ghost.get("size", content_bytes))
        ):
            yield place


def _number(value: Value | None) -> int:
    return value if isinstance(value, int) else 0
