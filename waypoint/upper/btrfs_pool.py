"""Driver `btrfs`: every tree is a subvolume, so that a snapshot costs one commit whatever the tree's size.

The pool's folder lies on the machine's own btrfs, or is the mount point of a file system in a file (loop_pool).
"""

import contextlib
import errno
import os
import secrets
from typing import Protocol

from waypoint.linux import btrfs, filesystem
from waypoint.upper.contract import Growth, GrowthOutcome, refusals
from waypoint.upper.trees import FolderOfTrees


class Ground(Protocol):
    """What the pool's folder stands on."""

    def grow_if_needed(self) -> Growth: ...

    def close(self) -> None: ...


class NativeGround:
    """The machine's own btrfs: its size is not ours to change, and nothing is to be unmounted."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def grow_if_needed(self) -> Growth:
        return Growth(GrowthOutcome.FIXED, filesystem.free_bytes(self._folder))

    def close(self) -> None:
        pass


class BtrfsPool(FolderOfTrees):
    """Keeps the contract of `contract.Pool`."""

    driver = "btrfs"

    def __init__(self, folder: str, ground: Ground) -> None:
        """`folder`: absolute, without symlinks, on btrfs. What calls that were killed have left in it is removed."""
        super().__init__(folder)
        self._ground = ground
        with refusals("open the pool", folder):
            for name in os.listdir(folder):
                if name.startswith(".") and btrfs.is_subvolume(f"{folder}/{name}"):
                    btrfs.destroy_subvolume(f"{folder}/{name}")

    def create(self, name: str) -> str:
        path = self.path(name)
        with refusals("create the upper tree", name):
            btrfs.create_subvolume(path)
        return path

    def snapshot(self, source: str, name: str, *, sealed: bool = False) -> str:
        origin, path = self._existing("snapshot the upper tree", source), self.path(name)
        with refusals("snapshot the upper tree", f"{source} as {name}"):
            btrfs.snapshot_subvolume(origin, path, readonly=sealed)
        return path

    def seal(self, name: str) -> None:
        path = self._existing("seal the upper tree", name)
        with refusals("seal the upper tree", name):
            btrfs.make_readonly(path)

    def is_sealed(self, name: str) -> bool:
        path = self._existing("look at the upper tree", name)
        with refusals("look at the upper tree", name):
            return btrfs.is_readonly(path)

    def remove(self, name: str) -> None:
        path = self._unmounted(name)
        with refusals("remove the upper tree", name), contextlib.suppress(FileNotFoundError):
            btrfs.destroy_subvolume(path)

    def sync(self, name: str) -> None:
        # A snapshot writes out its source's dirty data and commits. syncfs or BTRFS_IOC_SYNC would also wait for all
        # that the neighbours have written (60 ms in the median beside one busy neighbour, against 1-3).
        path = self._existing("sync the upper tree", name)
        passing = f"{self._folder}/.sync-{secrets.token_hex(8)}"
        with refusals("sync the upper tree", name):
            try:
                btrfs.snapshot_subvolume(path, passing, readonly=True)
            except OSError as err:
                if err.errno != errno.ENOSPC:
                    raise
                btrfs.sync_filesystem(path)  # this needs no new space
            else:
                btrfs.destroy_subvolume(passing)

    def grow_if_needed(self) -> Growth:
        return self._ground.grow_if_needed()

    def close(self) -> None:
        self._ground.close()
