"""Driver `copy`: trees are plain folders, a snapshot is a recursive copy (with shared blocks if the file system can).

```
<home>/pool/NAME             a tree; sealed if it has the attribute SEALED
<home>/pool/.making-TOKEN/   copies that are not finished; the token is new each time that the pool is opened
<home>/pool/.gone/           trees that are being removed
```
A tree appears and goes by rename. What a killed process leaves in the hidden folders goes when the pool is opened.
"""

import contextlib
import errno
import os
import secrets

from waypoint.linux import filesystem
from waypoint.model.errors import HostLacks, StateConflict
from waypoint.upper.contract import Growth, GrowthOutcome, refusals
from waypoint.upper.trees import FolderOfTrees

GONE = ".gone"
_MAKING = ".making-"

# On the tree's own folder, which no overlay sees; so that it is made, copied and removed in one step with the tree.
SEALED = "trusted.waypoint.sealed"


class CopyPool(FolderOfTrees):
    """Keeps the contract of `contract.Pool`."""

    driver = "copy"

    def __init__(self, folder: str) -> None:
        """`folder`: exists, absolute, without symlinks. Raises HostLacks if it cannot hold what overlayfs writes."""
        super().__init__(folder)
        self._gone = f"{folder}/{GONE}"
        self._making = f"{folder}/{_MAKING}{secrets.token_hex(8)}"
        with refusals("open the pool", folder):
            # Of a pool that is there already nothing is asked that takes space: it must open on a full disk, too.
            if not os.path.isdir(self._gone):
                _probe(folder)
                os.mkdir(self._gone, mode=0o700)
            # By rename first: a copying process that outlived its caller finds its target's folder gone, and gives up.
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
            raise StateConflict(tried, name, "the name is taken", "remove that one first, or use another name")
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
        path = self._existing("seal the upper tree", name)
        with refusals("seal the upper tree", name):
            _mark(path, sealed=True)

    def is_sealed(self, name: str) -> bool:
        path = self._existing("look at the upper tree", name)
        with refusals("look at the upper tree", name):
            return SEALED in os.listxattr(path)

    def remove(self, name: str) -> None:
        path, gone = self._unmounted(name), _fresh(self._gone)
        with refusals("remove the upper tree", name), contextlib.suppress(FileNotFoundError):
            os.rename(path, gone)
            filesystem.remove_tree(gone)

    def sync(self, name: str) -> None:
        path = self._existing("sync the upper tree", name)
        with refusals("sync the upper tree", name):
            filesystem.sync_filesystem(path)

    def grow_if_needed(self) -> Growth:
        return Growth(GrowthOutcome.FIXED, self.free_bytes())

    def close(self) -> None:
        with contextlib.suppress(OSError):  # never made, closed before, or something is left in it for the next start
            os.rmdir(self._making)


def _probe(folder: str) -> None:
    """Find out by doing whether the file system takes what overlayfs writes into an upper tree."""
    trial = f"{folder}/{_MAKING}{secrets.token_hex(8)}"
    os.mkdir(trial, mode=0o700)
    try:
        filesystem.make_whiteout(f"{trial}/whiteout")
        os.setxattr(trial, "trusted.overlay.opaque", b"y")
    except OSError as err:
        said = f"the file system refuses what overlayfs needs: {err.strerror}"
        raise HostLacks("open the pool", folder, said, "put the home on ext4, XFS or btrfs") from err
    finally:
        filesystem.remove_tree(trial)


def _fresh(folder: str) -> str:
    return f"{folder}/{secrets.token_hex(8)}"


def _mark(path: str, *, sealed: bool) -> None:
    if sealed:
        os.setxattr(path, SEALED, b"y")
        return
    try:
        os.removexattr(path, SEALED)
    except OSError as err:
        if err.errno != errno.ENODATA:
            raise
