"""Keeping the daemon's mount namespace up to date with the host's mounts.

The daemon's namespace starts as a copy and a slave of the host's. If the host's mounts are shared, as with systemd, the
kernel propagates later mounts and unmounts. If they are private, this module does so: it mounts copies of the host's
new mounts, so that sessions see them, and unmounts what the host has unmounted, so that the devices are released.

Not in this module: which of the mounts a session sees (base.py).
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from waypoint.launch.ground.base import visible_mounts
from waypoint.linux.storage import mounts
from waypoint.linux.storage.mounts import MNT_DETACH, UMOUNT_NOFOLLOW, MountRecord
from waypoint.linux.tasks import namespaces
from waypoint.model.paths import is_below

T = TypeVar("T")

_MOST_AT_ONE_PLACE = 16  # mounts stacked on one mount point: each is visible only after the one above it is unmounted


class HostMounts:
    """Follows the host's mounts. `table`: a descriptor of the host's mountinfo; poll(2) reports POLLPRI after a change.
    `missing`: the mounts of the host that could not be copied. `changes`: how often `follow` has found a change.
    """

    def __init__(self, namespace: int, hidden: tuple[str, ...]) -> None:
        """`namespace`: a descriptor of the host's mount namespace, which must stay open. `hidden`: Waypoint's folders,
        below which no mount is changed. The caller must be in its own mount namespace. Raises OSError.
        """
        self._namespace = namespace
        self._hidden = hidden
        self._turn = threading.Lock()
        self._seen = b""
        self.missing: list[MountRecord] = []
        self.changes = 0
        self.table, root = namespaces.call_within(namespace, _open_table)
        own = os.stat("/")
        # In a chroot the two mount tables have different roots, so their paths cannot be compared.
        self._is_same_root = root == (own.st_dev, own.st_ino)

    def within(self, work: Callable[[], T]) -> T:
        """Call `work` in the machine's mount namespace, and return or raise what it does."""
        return namespaces.call_within(self._namespace, work)

    def follow(self) -> None:
        """Make the mounts of the caller's mount namespace equal to the present mounts of the host. Blocks, because the
        last unmount of a file system writes its dirty data. Thread-safe. Raises OSError.
        """
        with self._turn:
            present = mounts.read_again(self.table)
            if present == self._seen or not self._is_same_root:
                return
            wanted = self._reachable(mounts.parse_mounts(present))
            own = self._let_go(wanted)
            self.missing = self._take_over([mount for point, mount in wanted.items() if point not in own])
            self._seen = present
            self.changes += 1

    def _let_go(self, wanted: dict[str, MountRecord]) -> dict[str, MountRecord]:
        """Unmount all mounts that are not in `wanted`. Return the remaining mounts by mount point."""
        own = self._reachable(mounts.read_mounts())
        for _ in range(_MOST_AT_ONE_PLACE):
            gone = [point for point, mount in own.items() if not _is_same(mount, wanted.get(point))]
            # A mount above a folder of Waypoint stays: the folder would be unmounted with it.
            gone = [point for point in gone if not any(is_below(folder, point) for folder in self._hidden)]
            if not gone:
                break
            for point in sorted(gone, reverse=True):  # children first
                mounts.umount(point, MNT_DETACH | UMOUNT_NOFOLLOW)
            own = self._reachable(mounts.read_mounts())
        return own

    def _take_over(self, came: Iterable[MountRecord]) -> list[MountRecord]:
        """Mount copies of the host's new mounts `came`. Return the mounts that could not be copied."""
        ordered = sorted(came, key=lambda mount: mount.mount_point)  # parents first
        if not ordered:
            return []
        missing = []
        for mount, fd in zip(ordered, namespaces.call_within(self._namespace, _clones(ordered)), strict=True):
            if fd < 0:
                missing.append(mount)
                continue
            try:
                mounts.attach(fd, mount.mount_point)
                mounts.make_slave(mount.mount_point)  # so that mounts made here do not propagate to the host
            except OSError:  # its mount point is in a missing mount
                missing.append(mount)
            finally:
                os.close(fd)
        return missing

    def _reachable(self, table: list[MountRecord]) -> dict[str, MountRecord]:
        found = visible_mounts(table)
        return {p: found[p] for p in found if p != "/" and not any(is_below(p, folder) for folder in self._hidden)}


def _open_table() -> tuple[int, tuple[int, int]]:
    root = os.stat("/")
    return mounts.open_table(), (root.st_dev, root.st_ino)


def _clones(of: list[MountRecord]) -> Callable[[], list[int]]:
    """Return a function that opens copies of the mounts `of` and returns their descriptors. The descriptor is -1 for a
    mount that cannot be copied (it is unbindable or no longer mounted).
    """

    def open_all() -> list[int]:
        fds = [-1] * len(of)
        for place, mount in enumerate(of):
            with contextlib.suppress(OSError):
                fds[place] = mounts.clone(mount.mount_point)
        return fds

    return open_all


def _is_same(one: MountRecord, other: MountRecord | None) -> bool:
    """Whether both mounts show the same folder of the same device. (A mounted device keeps its number.)"""
    return other is not None and (one.device, one.root) == (other.device, other.root)
