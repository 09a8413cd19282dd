"""Which files CRIU's images mention by path, and which of them are files of the base.

A restore opens these by path, so it needs them as they were. CRIU itself compares nothing but the size, and of programs
and libraries their build ids.

Formats: images/{fdinfo,regfile,remap-file-path}.proto in CRIU's source.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import as_text
from waypoint.model.records import Fixed
from waypoint.processes.criu.lists import FILES, FILES_MAGIC, REMAPS, REMAPS_MAGIC, read_messages
from waypoint.processes.criu.messages import Field, Message, decode
from waypoint.upper import layout
from waypoint.upper.comparing.stack import EMPTY, OWN, Parts, Shown, Stack, below, parts_of, read_marks

_OPEN_PATH = 0o10000000  # O_PATH: who has opened a file so may not be able to read it
_REG = Message(
    {
        "id": Field(1, "uint32"),
        "flags": Field(2, "uint32"),
        "name": Field(6, "string"),
        "size": Field(8, "uint64"),
        "ext": Field(9, "bool"),
        "mode": Field(10, "uint32"),
    }
)
_OPEN_FILE = Message({"reg": Field(3, _REG)})
_REMAP = Message({"orig_id": Field(1, "uint32")})


class BaseFile(msgspec.Struct, frozen=True, order=True):
    """A file of the base. `target`: the session's mount that it is in. `name`: its path below that, in the base."""

    target: str
    name: bytes

    @property
    def path(self) -> str:
        return os.fsdecode(self.name)

    @property
    def place(self) -> str:
        """In the session, if it had moved nothing."""
        return f"{self.target.rstrip('/')}/{self.path}"

    @property
    def shown(self) -> str:
        """For people."""
        return as_text(self.place)


class OpenedFile(NamedTuple):
    """A plain file with a name, as the session sees it. `size`: as of Mentioned. `is_written`: whether it is open for
    writing.
    """

    path: str
    size: int | None
    is_written: bool


class Mentioned(NamedTuple):
    """`size`: what it must have, in bytes; None if CRIU does not look at that."""

    file: BaseFile
    size: int | None


def files_of_base(images_fd: int, fixed: Fixed, tree: str) -> list[Mentioned]:
    """The files of the base that the images in the folder `images_fd` mention, sorted, each once. `tree`: the upper
    tree of their capture: what lies there is none of the base. Raises OSError, ValueError if an image is malformed.
    """
    found: dict[BaseFile, int | None] = {}
    with contextlib.ExitStack() as held:
        uppers: dict[str, int] = {}
        for path, size, _ in opened_files(images_fd):
            target = target_of(path, fixed)
            if target not in fixed.overlays:  # a bind, which a restore does not bring back, or a view of the kernel
                continue
            if target not in uppers:
                uppers[target] = held.enter_context(open_folder(layout.upper_of(tree, target)))
            place = _place_in_base(uppers[target], target, path[len(target.rstrip("/")) + 1 :])
            if place and not os.path.lexists(f"{layout.base_of(tree, target)}/{place}"):
                found[BaseFile(target, os.fsencode(place))] = size
    return [Mentioned(file, found[file]) for file in sorted(found)]


def target_of(path: str, fixed: Fixed) -> str:
    """The session's mount that the path is in; "" if it is in none."""
    return max((one for one in fixed.outside if _is_in(path, one)), key=len, default="")


def opened_files(images_fd: int) -> Iterator[OpenedFile]:
    """Each plain file that has a name. Raises OSError, ValueError if an image is malformed."""
    remaps = (decode(_REMAP, one) for one in read_messages(images_fd, REMAPS, REMAPS_MAGIC))
    nameless = {remap.get("orig_id") for remap in remaps}
    for entry in read_messages(images_fd, FILES, FILES_MAGIC):
        reg = decode(_OPEN_FILE, entry).get("reg")
        if not isinstance(reg, dict) or reg.get("ext") or reg.get("id") in nameless:
            continue
        name, flags, size = reg.get("name"), reg.get("flags", 0), reg.get("size")
        mode = reg.get("mode", stat.S_IFREG)
        assert isinstance(name, str)
        assert isinstance(flags, int)
        assert isinstance(mode, int)
        if stat.S_ISREG(mode) and not flags & _OPEN_PATH:
            is_written = flags & os.O_ACCMODE != os.O_RDONLY
            yield OpenedFile(f"/{name.lstrip('/')}", size if isinstance(size, int) else None, is_written)


def _is_in(path: str, target: str) -> bool:
    return path.startswith(target.rstrip("/") + "/")


def _place_in_base(upper: int, target: str, path: str) -> str:
    """Where in the base the file at `path` of the mount at `target` lies; "" if it lies in the upper directory, or is
    Waypoint's own. A folder that the session has moved is elsewhere in the base.
    """
    if target == "/" and any(_is_in(f"/{path}", f"/{one}") for one in (*EMPTY, *OWN)):
        return ""
    stack, lower = Stack(upper, -1, target), ""
    folder, names = os.dup(upper), path.split("/")
    try:
        for place, name in enumerate(names):
            try:
                facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return below(lower, "/".join(names[place:]))
            if place == len(names) - 1 or not stat.S_ISDIR(facts.st_mode):
                return ""
            parts = parts_of(Parts(None, lower), name, Shown(facts, is_upper=True), read_marks(folder, name), stack)
            if parts.lower is None:
                return ""
            lower = parts.lower
            inner = beneath.open_beneath(folder, name, os.O_PATH | os.O_DIRECTORY)
            os.close(folder)
            folder = inner
    finally:
        os.close(folder)
    return ""
