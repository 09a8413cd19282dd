"""The hot area in memory: a tmpfs at `<home>/hot/.memory`, to which CRIU writes the images of a capture, because a dump
to a disk keeps a session frozen for longer.

It is mounted in the machine's mount namespace, so it outlives every process of Waypoint. `close` unmounts it if it is
empty. Only the home's owner may read it, its size is bounded, and its pages are not swapped out (Linux 6.4).
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from waypoint.linux.calls import machine
from waypoint.linux.storage import filesystem, mounts

T = TypeVar("T")
Within = Callable[[Callable[[], T]], T]
"""Calls a function in the machine's mount namespace, and returns or raises what the function does."""

SHARE = 8
"""The usual size is the machine's memory divided by this."""
_SPARE = 16  # the machine's memory divided by this stays available to programs
_FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
_log = logging.getLogger(__name__)


class HotMemory:
    """Thread-safe. `why_not`: why captures are not written to memory; "" if they are. `is_known`: whether everything
    that is in memory can be seen. `is_wanted`: whether config.json gives it a size.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: the mount point."""
        self.folder = folder
        self.size_bytes = 0
        self.why_not = "no daemon has mounted it"
        self.is_known = False
        self.is_wanted = True
        self._within: Within[object] | None = None
        self._probe: Callable[[], str] | None = None
        self._lock = threading.Lock()
        self._reserved: dict[str, int] = {}

    def open(self, size_bytes: int, within: Within[object] | None, probe: Callable[[], str]) -> None:
        """Mount the tmpfs, or find that an earlier daemon has. `size_bytes`: 0: captures are not written to memory.
        `within` None: the machine's mount namespace is not known. `probe`: called before the first use; returns why
        restores cannot read the tmpfs, or "".
        """
        self.is_wanted = size_bytes > 0
        if within is None:
            self.why_not = "the daemon was started without the machine's mount namespace"
            return
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            device = within(lambda: _mount(self.folder, size_bytes))
            if device is not None and os.stat(self.folder).st_dev != device:  # mounts of the machine do not propagate
                tree = within(lambda: mounts.clone(self.folder))
                assert isinstance(tree, int)
                try:
                    mounts.attach(tree, self.folder)
                    mounts.make_private(self.folder)
                finally:
                    os.close(tree)
        except OSError as error:
            self.why_not = f"a tmpfs cannot be mounted at {self.folder}: {error.strerror or error}"
            _log.warning("captures are written to the disk first: %s", self.why_not)
            return
        self.is_known, self.size_bytes = True, size_bytes
        self.why_not = "" if size_bytes else "the home's hot_memory_bytes is 0"
        self._within, self._probe = within, probe

    def close(self) -> None:
        """Unmount the tmpfs if it is empty."""
        if self._within is None or self.list():
            return
        with contextlib.suppress(OSError):  # it was unmounted already
            self._within(lambda: mounts.umount(self.folder, mounts.UMOUNT_NOFOLLOW | mounts.MNT_DETACH))

    def reserve(self, capture_id: str, needed_bytes: int) -> bool:
        """Reserve memory for a capture, until `release`. Returns False if there is not enough."""
        with self._lock:
            if not self._has_room(needed_bytes):
                return False
            self._reserved[capture_id] = needed_bytes
            return True

    def has_room(self, needed_bytes: int) -> bool:
        with self._lock:
            return self._has_room(needed_bytes)

    def _has_room(self, needed_bytes: int) -> bool:
        if self._probe is not None:
            self.why_not, self._probe = self.why_not or self._probe(), None
        if self.why_not:
            return False
        free = filesystem.free_bytes(self.folder) - sum(self._reserved.values())
        spare = machine.total_memory_bytes() // _SPARE
        return needed_bytes <= free and needed_bytes + spare <= machine.available_memory_bytes()

    def release(self, capture_id: str) -> None:
        """Idempotent."""
        with self._lock:
            self._reserved.pop(capture_id, None)

    def list(self) -> list[str]:
        """The ids of the captures in memory."""
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def used_bytes(self) -> int:
        if not self.is_known:
            return 0
        return filesystem.total_bytes(self.folder) - filesystem.free_bytes(self.folder) if self.list() else 0


def unmount(folder: Path) -> None:
    """Discard a tmpfs that a daemon has left. The caller must be in the machine's mount namespace."""
    with contextlib.suppress(OSError):  # none is mounted there
        mounts.umount(folder, mounts.UMOUNT_NOFOLLOW | mounts.MNT_DETACH)


def _mount(folder: Path, size_bytes: int) -> int | None:
    """Mount a tmpfs, or change the size of the present one. Returns its device number; None without a tmpfs."""
    if os.stat(folder).st_dev != os.stat(folder.parent).st_dev:
        with contextlib.suppress(OSError):  # more of it is in use
            mounts.mount(None, folder, None, mounts.MS_REMOUNT | _FLAGS, f"size={max(size_bytes, 1)}")
        return os.stat(folder).st_dev
    if not size_bytes:
        return None
    for more in (",noswap", ""):
        try:
            mounts.mount("waypoint", folder, "tmpfs", _FLAGS, f"size={size_bytes},mode=0700{more}")
            break
        except OSError:  # before Linux 6.4 there is no such option
            if not more:
                raise
    return os.stat(folder).st_dev
