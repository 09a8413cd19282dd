"""The machine's mounts as they come and go: the daemon's mount namespace follows them.

That namespace begins as a copy of the machine's, and is its slave: where the machine's mounts are shared, as systemd
makes them, the kernel hands on what is mounted and unmounted later. Where they are private, the kernel does not. Then
this module mounts copies of new mounts, which sessions would not see otherwise, and unmounts those that are gone, whose
devices would stay busy otherwise.

Out of scope: which of the mounts a session sees (base.py).
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable

from waypoint.launch.ground.base import is_below, visible_mounts
from waypoint.launch.ground.shown_mounts import ShownCapture, all_shown, is_shown
from waypoint.linux.storage import mounts
from waypoint.linux.storage.mounts import MNT_DETACH, UMOUNT_NOFOLLOW, MountRecord
from waypoint.linux.tasks import namespaces

_MOST_AT_ONE_PLACE = 16  # mounts on one mount point: each is seen only when the one on top of it is gone


class HostMounts:
    """The machine's mounts. `table`: a descriptor of its mountinfo; poll(2) reports POLLPRI for it when that has
    changed. `missing`: the mounts that the machine has, and that could not be taken over. `changes`: how often the
    machine's mounts were found changed.
    """

    def __init__(self, namespace: int, hidden: tuple[str, ...]) -> None:
        """`namespace`: a descriptor of the machine's mount namespace, which must stay open. `hidden`: folders of
        Waypoint's: mounts below those are never touched. The caller must be in a mount namespace of its own.

        Raises OSError.
        """
        self._namespace = namespace
        self._hidden = hidden
        self._turn = threading.Lock()
        self._seen = b""
        self.missing: list[MountRecord] = []
        self.changes = 0
        self.table, root = namespaces.call_within(namespace, _open_table)
        own = os.stat("/")
        # In a chroot the paths of the two tables mean different places.
        self._is_same_root = root == (own.st_dev, own.st_ino)

    def follow(self) -> None:
        """Give the caller's mount namespace the mounts that the machine has now. Blocks, since the last unmount of a
        file system writes it out. Any thread may call this. Raises OSError.
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

    def shown(self, home: str) -> dict[str, str]:
        """By id of the captures of the home with the id `home` that are mounted on the machine: where. For any
        thread. Raises OSError.
        """
        return {one.capture: one.point for one in self.all_shown() if one.home == home}

    def all_shown(self) -> list[ShownCapture]:
        """The captures of all homes that are mounted on the machine. For any thread. Raises OSError."""
        with self._turn:
            return all_shown(mounts.parse_mounts(mounts.read_again(self.table)))

    def shows_at(self, point: str) -> bool:
        """Whether the files of a capture, of any home, are mounted at the very path `point`. Raises OSError."""
        with self._turn:
            table = mounts.parse_mounts(mounts.read_again(self.table))
        return any(is_shown(mount) and mount.mount_point == point for mount in table)

    def is_seen_by(self, pid: int) -> bool:
        """Whether the process is in the machine's mount namespace. Raises OSError if it has ended."""
        return namespaces.is_in(pid, "mnt", self._namespace)

    def attach(self, tree: int, point: str) -> None:
        """Mount what is behind the descriptor `tree`, as `mounts.attach`, on the machine. Raises OSError."""
        namespaces.call_within(self._namespace, lambda: mounts.attach(tree, point))

    def _let_go(self, wanted: dict[str, MountRecord]) -> dict[str, MountRecord]:
        """Unmount what is not among `wanted`, by mount point. Returns the mounts that stay."""
        own = self._reachable(mounts.read_mounts())
        for _ in range(_MOST_AT_ONE_PLACE):
            gone = [point for point, mount in own.items() if not _is_same(mount, wanted.get(point))]
            # A mount with a folder of Waypoint's below it stays: that would be unmounted, too.
            gone = [point for point in gone if not any(is_below(folder, point) for folder in self._hidden)]
            if not gone:
                break
            for point in sorted(gone, reverse=True):  # what lies below goes first
                mounts.umount(point, MNT_DETACH | UMOUNT_NOFOLLOW)
            own = self._reachable(mounts.read_mounts())
        return own

    def _take_over(self, came: Iterable[MountRecord]) -> list[MountRecord]:
        """Mount copies of the machine's new mounts `came` at their places. Returns those that could not be mounted."""
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
                mounts.make_slave(mount.mount_point)  # no mount event is to propagate out of it
            except OSError:  # its mount point is in a mount that is missing
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
    """A function that opens copies of the mounts and returns their descriptors: -1 for a mount that cannot be copied
    (unbindable, or unmounted meanwhile).
    """

    def open_all() -> list[int]:
        fds = [-1] * len(of)
        for place, mount in enumerate(of):
            with contextlib.suppress(OSError):
                fds[place] = mounts.clone(mount.mount_point)
        return fds

    return open_all


def _is_same(one: MountRecord, other: MountRecord | None) -> bool:
    """Whether both mounts show the same folder of the same device. A device's number is not given to another one while
    a mount of it exists.
    """
    return other is not None and (one.device, one.root) == (other.device, other.root)
