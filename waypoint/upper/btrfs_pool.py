"""Driver `btrfs`: every tree is a subvolume, so that a snapshot costs one commit, whatever the tree's size.

The pool's folder lies on the machine's own btrfs, which Waypoint neither resizes nor unmounts, or is the mount point of
a btrfs in a file (loop_pool.py).
"""

import contextlib
import dataclasses
import errno
import logging
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterable

from waypoint.linux.storage import btrfs, btrfs_sharing, filesystem, quota
from waypoint.linux.storage.btrfs_changes import read_subvolume
from waypoint.model.errors import Failed
from waypoint.model.ids import random_hex
from waypoint.upper.contract import UNLIMITED, Outlook, PoolUsage, Shares, refusals
from waypoint.upper.trees import FolderOfTrees

_log = logging.getLogger(__name__)
_SETTLE_S = 10.0
_NO_QUOTAS = (errno.ENOTCONN, errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP)
_QUICK_S = 0.015  # a commit that takes less is quick; on an idle machine a commit takes 1 to 3 ms


def _seal(path: str) -> None:
    """Make the tree read-only. This writes to the tree, so a limit that the tree has reached is removed first."""
    try:
        btrfs.make_readonly(path)
    except OSError as err:
        if err.errno != errno.EDQUOT:
            raise
        quota.limit(path, quota.NO_LIMIT)
        btrfs.make_readonly(path)


class BtrfsPool(FolderOfTrees):
    """Implements `contract.Pool`, which documents the methods."""

    driver = "btrfs"
    no_quotas = "quotas are off on the machine's btrfs: 'btrfs quota enable --simple'"
    """The reason, as text, why the file system cannot enforce limits."""

    def __init__(self, folder: str) -> None:
        """`folder`: absolute, without symlinks, on btrfs. Removes subvolumes that calls of killed processes left."""
        super().__init__(folder)
        with refusals("open the pool", folder):
            for name in () if filesystem.is_readonly(folder) else os.listdir(folder):
                if name.startswith(".") and btrfs.is_subvolume(f"{folder}/{name}"):
                    btrfs.destroy_subvolume(f"{folder}/{name}")

    def measure(self, names: Iterable[str], limit_s: float | None = None) -> PoolUsage:
        if not filesystem.is_readonly(self._folder):
            with contextlib.suppress(OSError):  # a full pool: then the sizes are those of the last commit
                btrfs.sync_filesystem(self._folder)
        try:
            found = self._sharing(limit_s)
        except subprocess.TimeoutExpired as error:
            said = f"it takes longer than {error.timeout:g} s"
            failed = {name: Failed("measure the upper tree", name, said) for name in names}
            return PoolUsage({}, failed, self.unique_bytes())
        if found is None:
            return super().measure(names, limit_s)
        trees = {name: Shares(*found.trees[name]) for name in names if name in found.trees}
        return PoolUsage(trees, {}, found.all_bytes)

    def _shares(self, name: str, limit_s: float | None) -> Shares:
        with self._tree("measure the upper tree", name) as path:
            found = btrfs.disk_usage(path, limit_s)
        return Shares(found.total, found.own)

    def _sharing(self, limit_s: float | None = None) -> btrfs_sharing.Sharing | None:
        """None if the disk cannot be read. Raises TimeoutExpired after `limit_s`."""
        try:
            return btrfs_sharing.sharing(self._folder, limit_s)
        except (OSError, subprocess.CalledProcessError) as error:
            said = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else error
            _log.info("the pool is measured file by file: %s", str(said).strip().rpartition("\n")[2])
            return None

    def unique_bytes(self) -> int:
        with refusals("measure the pool", self._folder):
            sharing = self._sharing()
            if sharing is not None:
                return sharing.all_bytes
            found = btrfs.disk_usage(self._folder)
        return found.own + found.shared_here

    def disk_bytes(self) -> int:
        return self.unique_bytes()

    def free_bytes(self) -> int:
        with refusals("look at the pool", self._folder):
            return btrfs.free_bytes(self._folder)

    def outlook(self) -> Outlook:
        with refusals("look at the pool", self._folder):
            return dataclasses.replace(super().outlook(), errors=btrfs.error_count(self._folder))

    def make_room(self, *, with_reserve: bool) -> None:
        """Enlarge a file system that belongs to Waypoint a little, for the metadata of a tree, even if less than the
        floor (`PoolSizes`) then stays free on the disk. `with_reserve`: on a full disk, use the home's reserve.
        """

    def close(self) -> None:
        pass

    def retry_if_full(self, act: Callable[[], None], *, is_end: bool = False) -> None:
        """Call `act`. After ENOSPC, free some space and call it again: otherwise nothing could be removed from a full
        pool. First dirty data is written out, because btrfs reserves more space for it than needed; if that is not
        enough, `make_room` is called. `is_end`: `act` ends or removes something, so it may use the home's reserve.
        """
        ways: list[Callable[[], None]] = [
            lambda: btrfs.sync_filesystem(self._folder),
            lambda: self.make_room(with_reserve=is_end),
        ]
        for make_room in ways:
            try:
                act()
            except OSError as err:
                if err.errno != errno.ENOSPC:
                    raise
            else:
                return
            make_room()
        act()

    def settle(self) -> None:
        with refusals("look at the pool", self._folder):
            if not filesystem.is_readonly(self._folder):
                btrfs.wait_until_cleaned(self._folder, _SETTLE_S)

    def create(self, name: str) -> str:
        path = self.path(name)
        self.stop_compacting()
        with refusals("create the upper tree", name):
            self.retry_if_full(lambda: btrfs.create_subvolume(path))
        return path

    def snapshot(self, source: str, name: str, *, sealed: bool = False) -> str:
        origin, path = self._existing("snapshot the upper tree", source), self.path(name)
        self.stop_compacting()
        with refusals("snapshot the upper tree", f"{source} as {name}"):
            self.retry_if_full(lambda: btrfs.snapshot_subvolume(origin, path, readonly=sealed))
        return path

    def seal(self, name: str) -> None:
        if filesystem.is_readonly(self._folder):
            return
        with self._tree("seal the upper tree", name) as path:
            self.retry_if_full(lambda: _seal(path), is_end=True)

    def limit(self, name: str, most_bytes: int) -> str:
        with self._tree("limit the upper tree", name) as path:
            try:
                self.retry_if_full(lambda: self._limit(path, most_bytes))
            except OSError as err:
                if err.errno not in _NO_QUOTAS:
                    raise
                return self.no_quotas
        if most_bytes == UNLIMITED:
            self.limits.pop(name, None)
        else:
            self.limits[name] = most_bytes
        return ""

    def written_bytes(self, name: str) -> int | None:
        with self._tree("look at the upper tree", name) as path:
            if not quota.is_enabled(path):
                return None
            with contextlib.suppress(OSError):  # a full pool: then the size is that of the last commit
                btrfs.sync_filesystem(self._folder)
            return quota.charged_bytes(path)

    def count(self) -> bool:
        """Begin to count what each tree writes; this cannot be switched off. Returns False if the file system does not
        belong to Waypoint.
        """
        return False

    def _limit(self, path: str, most_bytes: int) -> None:
        try:
            quota.limit(path, most_bytes)
        except OSError as err:
            if err.errno != errno.ENOTCONN or not self.count():
                raise
            quota.limit(path, most_bytes)

    def remove(self, name: str) -> None:
        path = self._unmounted(name)
        if not os.path.lexists(path):
            return
        with refusals("remove the upper tree", name), contextlib.suppress(FileNotFoundError):
            self.retry_if_full(lambda: btrfs.destroy_subvolume(path), is_end=True)
        self.limits.pop(name, None)

    def sync(self, name: str) -> None:
        # A commit is slow (a second for 40,000 files) if the kernel frees removed trees in it, or if much was written
        # during the previous commit. So commit until a commit is quick, or hardly quicker than the previous one (a slow
        # disk, a steady writer). Then the snapshot, for which the session is frozen, seldom waits for a slow commit.
        self.stop_compacting()
        with self._tree("sync the upper tree", name) as path:
            before_s, took_s = math.inf, 0.0
            while took_s == 0.0 or _QUICK_S < took_s < before_s / 2:
                before_s, began = took_s or math.inf, time.monotonic()
                self._commit(path)
                took_s = time.monotonic() - began

    def mark(self, name: str) -> int | None:
        with self._tree("sync the upper tree", name) as path:
            return self._commit(path)

    def _commit(self, path: str) -> int | None:
        """Return the number of the transaction; None if it is not known."""
        # A snapshot writes out its source's dirty data and commits: 1-3 ms. syncfs or BTRFS_IOC_SYNC would also write
        # out the dirty data of all other trees: 60 ms in the median beside one busy tree.
        temporary = f"{self._folder}/.sync-{random_hex(8)}"
        try:
            btrfs.snapshot_subvolume(path, temporary, readonly=True)
        except OSError as err:
            if err.errno != errno.ENOSPC:
                raise
            btrfs.sync_filesystem(path)  # slower, but needs no space for a subvolume
            return None
        try:
            return read_subvolume(temporary).made
        finally:
            btrfs.destroy_subvolume(temporary)
