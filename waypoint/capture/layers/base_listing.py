"""The listing of the files of the base that a capture has (base_files.py), and which of them the machine has, too."""

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

import shellwrap
from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.paths import OWN_FOLDER, is_below

LISTING = "files.json"
MAX_LISTING_BYTES = 16 << 20
_CONTENT = re.compile(r"[0-9a-f]{32}")
_OWN_SCRIPTS = Path(shellwrap.__path__[0])
"""From which the skeleton makes the session's folder OWN_FOLDER (launch/ground/skeleton.py)."""

_Id = Annotated[int, msgspec.Meta(ge=0, lt=(1 << 32) - 1)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class BaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """`path`: in the session. `mtime`: in nanoseconds. `uid`, `gid`: on disk. `content`: the name of its content; of
    Waypoint's own files it is a digest (`name_of`). `is_capable`: it had file capabilities, which are not kept.
    """

    path: str
    size: _Number
    mtime: _Number
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o7777)]
    uid: _Id
    gid: _Id
    content: str
    is_capable: bool = False


class BaseFiles(msgspec.Struct, frozen=True):
    """`left_out`: by path, why the capture does not have a file."""

    files: list[BaseFile] = []
    left_out: dict[str, str] = {}


def parse(content: bytes) -> list[BaseFile]:
    """The files in a listing, which may be hostile. Raises ValueError."""
    try:
        found = msgspec.json.decode(content, type=BaseFiles).files
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    for file in found:
        parts = file.path.split("/")
        if parts[0] or any(part in ("", ".", "..") for part in parts[1:]) or "\0" in file.path:
            raise ValueError(f"a file in it has the path {file.path!r}")
        if not _CONTENT.fullmatch(file.content):
            raise ValueError(f"a content in it has the name {file.content!r}")
    return found


def differing(found: list[BaseFile], base: str) -> list[BaseFile]:
    """The files of which the machine has another version, by size, time and mode, or none. `base`: the folder of the
    session's base. Of Waypoint's own files the contents are compared.
    """
    if not found:
        return []
    try:
        with open_folder(base) as folder:
            return [file for file in found if not (_is_own_same(file) if is_own(file.path) else _is_same(folder, file))]
    except (FileNotFoundError, NotADirectoryError):  # this machine has no such base
        return found


def is_own(path: str) -> bool:
    """Whether it is a file of Waypoint, which each daemon brings with it."""
    return is_below(path, f"/{OWN_FOLDER}")


@contextlib.contextmanager
def opened(base: int, file: BaseFile) -> Iterator[int]:
    """Open the machine's file for reading. `base`: the open folder of the session's base."""
    if not is_own(file.path):
        with beneath.opened(base, file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) as fd:
            yield fd
        return
    with (_OWN_SCRIPTS / os.path.relpath(file.path, f"/{OWN_FOLDER}")).open("rb") as script:
        yield script.fileno()


def name_of(identity: bytes) -> str:
    """The name of a content. `identity`: the content itself of Waypoint's own files, else what identifies it."""
    return hashlib.sha256(identity).hexdigest()[:32]


def _is_own_same(file: BaseFile) -> bool:
    try:
        content = (_OWN_SCRIPTS / os.path.relpath(file.path, f"/{OWN_FOLDER}")).read_bytes()
    except OSError:
        return False
    return name_of(content) == file.content


def _is_same(base: int, file: BaseFile) -> bool:
    try:
        with beneath.opened(base, file.path) as fd:
            facts = os.fstat(fd)
    except OSError:
        return False
    now = facts.st_mode, facts.st_size, max(0, facts.st_mtime_ns)
    return now == (stat.S_IFREG | file.mode, file.size, file.mtime)
