"""The base of a session without root: folders that overlayfs accepts as layers, and the frame around them.

In a user namespace the kernel refuses a folder as a layer of an overlay if something is mounted below it, which the
mount would uncover. So the root overlay has no layer of the base. Each folder of the base that has no mount below it
gets an overlay of its own; the folders above such mounts, such as `/`, are copied into the skeleton: their links, and
small files.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from waypoint.model.conditions import Degradation, degradation
from waypoint.model.paths import is_below

_MOST_FILE_BYTES = 1 << 20
_MOST_ENTRIES = 1000
"""A folder with more entries is not split: each folder in it would be a mount."""


class Frame(NamedTuple):
    """`base`: the folder of the base. `folders`: the folders, absolute in the session, that are split, parents first.
    `layers`: the folders that become overlays.
    """

    base: str
    folders: tuple[str, ...]
    layers: tuple[str, ...]

    def about(self) -> list[str]:
        """What distinguishes this frame from others."""
        return [*self.folders, "", *self.layers]

    def fill(self, place: Path) -> None:
        """Make the split folders in the skeleton `place`, with their links, small files, and mount points."""
        for folder in self.folders:
            own = place / folder.lstrip("/")
            own.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):  # the user may not read it
                for entry in _entries(_whole(self.base, folder)):
                    if not os.path.lexists(own / entry.name):
                        with contextlib.suppress(OSError):
                            _copy(entry, own / entry.name)
            own.chmod(owner_mode(_whole(self.base, folder)))


def split(base: str, points: Collection[str], not_shown: Collection[str]) -> tuple[Frame, list[Degradation]]:
    """Split `base` into layers. `points`: the mount points of the machine. `not_shown`: folders and mount points that a
    session does not see, or of which it has its own. Returns also the folders that cannot be shown.
    """
    folders, layers, lacking = list[str](), list[str](), list[Degradation]()
    waiting = ["/"]
    while waiting:
        folder = waiting.pop()
        whole = _whole(base, folder)
        if not any(point != whole and is_below(point, whole) for point in points):
            layers.append(folder)
            continue
        folders.append(folder)
        try:
            entries = _entries(whole)
        except OSError as error:
            lacking.append(degradation("mount-left-out", folder, error.strerror or str(error)))
            continue
        # The copy of a folder that the user may not enter is empty, too, and needs no mount.
        able = (one for one in entries if one.is_dir(follow_symlinks=False) and os.access(one.path, os.X_OK))
        inner = [f"{folder.rstrip('/')}/{one.name}" for one in able]
        waiting += [one for one in sorted(inner, reverse=True) if _whole(base, one) not in not_shown]
    return Frame(base, tuple(folders), tuple(layers)), lacking


def owner_mode(path: str) -> int:
    """The mode of a copy of the folder `path` that belongs to this process's user, who gets no more access by it."""
    facts = os.stat(path)
    mode = stat.S_IMODE(facts.st_mode)
    if facts.st_uid == os.geteuid():
        return mode
    allowed = sum(bit for bit, right in ((4, os.R_OK), (2, os.W_OK), (1, os.X_OK)) if os.access(path, right))
    return (mode & 0o1077) | allowed << 6


def _whole(base: str, path: str) -> str:
    return f"{base.rstrip('/')}{path}".rstrip("/") or "/"


def _entries(folder: str) -> "list[os.DirEntry[str]]":
    with os.scandir(folder) as found:
        entries = list(found)
    if len(entries) > _MOST_ENTRIES:
        raise OSError(0, f"a file system is mounted below it, and it has more than {_MOST_ENTRIES} entries")
    return entries


def _copy(entry: "os.DirEntry[str]", target: Path) -> None:
    if entry.is_symlink():
        target.symlink_to(os.readlink(entry.path))
    elif entry.is_dir():
        target.mkdir()
        target.chmod(owner_mode(entry.path))
    elif entry.is_file() and entry.stat().st_size <= _MOST_FILE_BYTES:
        shutil.copy2(entry.path, target)
