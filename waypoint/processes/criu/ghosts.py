"""Removed folders in CRIU's images as "ghosts": a restore makes a ghost under some name, opens it, and removes it
again.

CRIU makes a ghost of a removed folder only if the folder's link count is 0. A folder of an overlay's lower layer keeps
the link count of the layer, so CRIU tries linkat(2) instead, which the kernel refuses for folders ("Can't link remap").
Therefore such a folder is declared external to CRIU, and after the dump the images are changed: the folder becomes a
ghost like those that CRIU makes of folders of the upper layer.

For a moment, CRIU creates a ghost under its last name, so the restore fails if that name is in use again
(`rm -r build; mkdir build`). So CRIU's own ghost folders get an unused name here.

Formats: images/{fdinfo,regfile,remap-file-path,ghost-file}.proto and criu/include/magic.h in CRIU's source.
"""

import os
import stat
from collections.abc import Sequence

from waypoint.linux.tasks.removed import RemovedFolder, unused_name
from waypoint.model.errors import CannotCapture
from waypoint.processes.criu.image_files import FILES, FILES_MAGIC, read_messages, write_messages
from waypoint.processes.criu.messages import Field, Message, Value, change_fields, decode, encode

REMAPS, REMAPS_MAGIC = "remap-fpath.img", 0x59133954
_GHOST_MAGIC = 0x52583605
_FIRST_GHOST = 0x40000000  # CRIU counts its own ghosts from 1
GHOST = 1  # remap_type

_REG = 3  # the field of a file's entry; the others are fields within it
_NAME, _MOUNT, _EXTERNAL = 6, 7, 9
_FILE = Message(
    {
        "reg": Field(
            _REG,
            Message(
                {
                    "id": Field(1, "uint32"),
                    "name": Field(_NAME, "string"),
                    "ext": Field(_EXTERNAL, "bool"),
                    "mode": Field(10, "uint32"),
                }
            ),
        )
    }
)
REMAP = Message({"orig_id": Field(1, "uint32"), "remap_id": Field(2, "uint32"), "remap_type": Field(3, "uint32")})
_TIME = Message({"tv_sec": Field(1, "uint64"), "tv_usec": Field(2, "uint64")})
_GHOST_FILE = Message(
    {
        "uid": Field(1, "uint32"),
        "gid": Field(2, "uint32"),
        "mode": Field(3, "uint32"),
        "atim": Field(7, _TIME),
        "mtim": Field(8, _TIME),
    }
)


def external_name(folder: RemovedFolder) -> str:
    """The value of CRIU's option --external that declares the folder external."""
    return f"file[{folder.mount_id:x}:{folder.inode:x}]"


def make_ghosts(images_fd: int, removed: Sequence[RemovedFolder]) -> None:
    """Change the images of a complete dump so that a restore recreates all removed folders that tasks hold.

    `removed`: the folders declared external, with unused names (`with_free_names`). Raises OSError; ValueError if an
    image is malformed; CannotCapture if CRIU took another open file for one of the folders: CRIU identifies them by
    mount and inode, and an overlay may give a folder the inode number of a file in a layer.
    """
    remaps = read_messages(images_fd, REMAPS, REMAPS_MAGIC)
    if not (removed or remaps):
        return
    ghosts = _Ghosts(removed, remaps)
    entries = [ghosts.change(entry) for entry in read_messages(images_fd, FILES, FILES_MAGIC)]
    write_messages(images_fd, FILES, FILES_MAGIC, entries)
    write_messages(images_fd, REMAPS, REMAPS_MAGIC, remaps + ghosts.remaps)
    for number, folder in ghosts.made.items():
        write_messages(images_fd, f"ghost-file-{number:x}.img", _GHOST_MAGIC, [_ghost_file(folder)])


class _Ghosts:
    """The ghosts of one dump. `made`: the added ones by their numbers. `remaps`: their entries in remap-fpath.img, each
    of which leads from an open file to its ghost.
    """

    def __init__(self, removed: Sequence[RemovedFolder], remaps: Sequence[bytes]) -> None:
        """`remaps`: CRIU's own entries."""
        self.made: dict[int, RemovedFolder] = {}
        self.remaps: list[bytes] = []
        self._external = {external_name(folder): (n, folder) for n, folder in enumerate(removed, _FIRST_GHOST)}
        decoded = [decode(REMAP, remap) for remap in remaps]
        own = [remap for remap in decoded if remap.get("remap_type") == GHOST]
        self._own = {_number(remap, "orig_id"): _number(remap, "remap_id") for remap in own}
        self._names: dict[int, str] = {}

    def change(self, entry: bytes) -> bytes:
        """The changed entry of files.img."""
        reg = decode(_FILE, entry).get("reg")
        if not isinstance(reg, dict):
            return entry
        file, name = _number(reg, "id"), str(reg["name"])
        is_folder = stat.S_ISDIR(_number(reg, "mode"))
        if reg.get("ext") and name in self._external:
            ghost, folder = self._external[name]
            if not is_folder:
                said = f"an open file has the same number as {folder.path}, a removed folder that a process holds"
                raise CannotCapture(
                    "dump", "the processes", said, f"leave or close {folder.path}", code="removed-folder"
                )
            self.made[ghost] = folder
            self.remaps.append(encode(REMAP, {"orig_id": file, "remap_id": ghost, "remap_type": GHOST}))
            place = os.fsencode(folder.path)
            changes: dict[int, int | bytes | None] = {
                _NAME: place,
                _MOUNT: folder.mount_id << 1,
                _EXTERNAL: None,
            }  # sint32 is zigzag-encoded
            return change_fields(entry, changes, within=_REG)
        if is_folder and file in self._own:
            other = self._names.setdefault(self._own[file], unused_name(name))
            return change_fields(entry, {_NAME: os.fsencode(other)}, within=_REG)
        return entry


def _ghost_file(folder: RemovedFolder) -> bytes:
    times = [(ns // 10**9, ns % 10**9 // 1000) for ns in (folder.accessed_ns, folder.modified_ns)]
    atim, mtim = (dict[str, Value](tv_sec=seconds, tv_usec=microseconds) for seconds, microseconds in times)
    values: dict[str, Value] = {"uid": folder.uid, "gid": folder.gid, "mode": folder.mode, "atim": atim, "mtim": mtim}
    return encode(_GHOST_FILE, values)


def _number(values: dict[str, Value], name: str) -> int:
    number = values.get(name, 0)
    return number if isinstance(number, int) else 0
