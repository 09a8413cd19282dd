"""Driver `copy`: trees are plain folders, a snapshot is a recursive copy (with shared blocks if the file system can).

```
<home>/pool/NAME             a tree; sealed if it has the extended attribute SEALED, which is renamed with the tree;
                             SIZE: the bytes of a sealed tree on the disk, written when it is first measured
<home>/pool/.making-TOKEN/   unfinished copies; every opening of the pool uses a new token
<home>/pool/.gone/           trees that are being removed
```
A tree appears and disappears by one rename. The next opening of the pool removes what a killed process left in the
hidden folders.
"""

import contextlib
import errno
import os

from waypoint.linux.storage import filesystem
from waypoint.model.errors import HostLacks, StateConflict, UnknownName
from waypoint.model.ids import random_hex
from waypoint.upper.contract import NAME_TAKEN, refusals
from waypoint.upper.marks import OPAQUE, SEALED, SIZE
from waypoint.upper.trees import FolderOfTrees

GONE = ".gone"
_MAKING = ".making-"


class CopyPool(FolderOfTrees):
    """Implements `contract.Pool`, which documents the methods."""

    driver = "copy"

    def __init__(self, folder: str) -> None:
        """`folder`: exists, absolute, without symlinks. Raises HostLacks if it cannot store overlayfs's marks."""
        super().__init__(folder)
        self._gone = f"{folder}/{GONE}"
        self._making = f"{folder}/{_MAKING}{random_hex(8)}"
        with refusals("open the pool", folder):
            # An existing pool is not probed, because probing writes files, which would fail on a full disk.
            if not os.path.isdir(self._gone):
                _probe(folder)
                os.mkdir(self._gone, mode=0o700)
            # Rename unfinished copies before removing them: a `cp` that outlived its caller then fails.
            for name in os.listdir(folder):
                if name.startswith(_MAKING):
                    os.rename(f"{folder}/{name}", _fresh(self._gone))
            for name in os.listdir(self._gone):
                filesystem.remove_tree(f"{self._gone}/{name}")

    def create(self, name: str) -> str:
        path = self.path(name)
        with refusals("create the upper tree", name):
            os.mkdir(path)
        return path

    def snapshot(self, source: str, name: str, *, sealed: bool = False) -> str:
        tried = "snapshot the upper tree"
        origin, path, making = self._existing(tried, source), self.path(name), _fresh(self._making)
        if os.path.lexists(path):  # a rename would replace an empty tree
            raise StateConflict(tried, name, NAME_TAKEN)
        with refusals(tried, f"{source} as {name}"):
            os.makedirs(self._making, mode=0o700, exist_ok=True)
            try:
                filesystem.copy_tree(origin, making)
                _mark(making, sealed=sealed)
                os.rename(making, path)
            except BaseException:
                filesystem.remove_tree(making)
                raise
        return path

    def seal(self, name: str) -> None:
        with self._tree("seal the upper tree", name) as path:
            _mark(path, sealed=True)

    def usage(self, name: str, limit_s: float | None = None) -> int:
        with self._tree("measure the upper tree", name) as path:
            marks = os.listxattr(path)
            if SEALED in marks and SIZE in marks:
                return int(os.getxattr(path, SIZE))
            used = filesystem.used_bytes(path, limit_s)
            if SEALED in marks:
                with contextlib.suppress(OSError):  # the disk is full: it is measured again
                    os.setxattr(path, SIZE, b"%d" % used)
            return used

    def disk_bytes(self) -> int:
        total = 0
        for name in self.list():
            with contextlib.suppress(UnknownName):  # removed meanwhile
                total += self.usage(name)
        with refusals("measure the pool", self._folder):
            hidden = [entry.path for entry in os.scandir(self._folder) if entry.name.startswith(".")]
            return total + sum(filesystem.used_bytes(path) for path in hidden if os.path.exists(path))

    def limit(self, name: str, most_bytes: int) -> str:
        self._existing("limit the upper tree", name)
        return "the pool consists of plain folders, whose size is not limited"

    def written_bytes(self, name: str) -> int | None:
        return None

    def remove(self, name: str) -> None:
        path, gone = self._unmounted(name), _fresh(self._gone)
        with refusals("remove the upper tree", name), contextlib.suppress(FileNotFoundError):
            os.rename(path, gone)
            filesystem.remove_tree(gone)

    def sync(self, name: str) -> None:
        with self._tree("sync the upper tree", name) as path:
            filesystem.sync_filesystem(path)

    def mark(self, name: str) -> int | None:
        self.sync(name)
        return None

    def close(self) -> None:
        # The folder is missing if no snapshot was made, and not empty after a failed snapshot; the next opening then
        # removes it.
        with contextlib.suppress(OSError):
            os.rmdir(self._making)


def _probe(folder: str) -> None:
    """Write a whiteout and an overlay attribute below `folder`. Raises HostLacks if the file system refuses."""
    trial = f"{folder}/{_MAKING}{random_hex(8)}"
    os.mkdir(trial, mode=0o700)
    try:
        filesystem.make_whiteout(f"{trial}/whiteout")
        os.setxattr(trial, OPAQUE, b"y")
    except OSError as err:
        said = f"the file system refuses what overlayfs needs: {err.strerror}"
        raise HostLacks("open the pool", folder, said, "put the home on ext4, XFS or btrfs") from err
    finally:
        filesystem.remove_tree(trial)


def _fresh(folder: str) -> str:
    return f"{folder}/{random_hex(8)}"


def _mark(path: str, *, sealed: bool) -> None:
    if sealed:
        os.setxattr(path, SEALED, b"y")
        return
    for mark in (SEALED, SIZE):
        try:
            os.removexattr(path, mark)
        except OSError as err:
            if err.errno != errno.ENODATA:
                raise
