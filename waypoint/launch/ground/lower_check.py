"""Checking whether a mount of the host can be the lower layer of an overlay, by mounting such an overlay.

overlayfs refuses case-insensitive file systems (vfat, so /boot/efi and USB sticks; exfat, ntfs3; ext4 and f2fs with
casefold), automounts and others (kernel fs/overlayfs/util.c, ovl_dentry_weird). A refused mount is left out of the
session, because the session could not start with it.
"""

import os
from pathlib import Path

from waypoint.linux.storage import mounts
from waypoint.linux.storage.mounts import MountRecord


class LowerCheck:
    """A callable that returns why a mount cannot be a lower layer, or "" if it can. Each mount is tried once."""

    def __init__(self, folder: Path) -> None:
        """`folder`: a folder for the trial mounts. The caller must be in the daemon's mount namespace."""
        self._place = folder / "probe"
        self._empty = folder / "probe-empty"
        self._known: dict[MountRecord, str] = {}

    def __call__(self, mount: MountRecord) -> str:
        if not os.path.isdir(mount.mount_point):
            return "mounted on a file"
        if mount not in self._known:  # the key is the whole record, because the kernel reuses the ids of mounts
            self._known[mount] = self._try(mount.mount_point)
        return self._known[mount]

    def _try(self, point: str) -> str:
        for folder in (self._place, self._empty):
            folder.mkdir(mode=0o700, exist_ok=True)
        lowers = ":".join(mounts.escape(path) for path in (point, str(self._empty)))
        try:
            mounts.mount("overlay", self._place, "overlay", mounts.MS_RDONLY, f"lowerdir={lowers}")
        except OSError as error:
            return f"overlayfs refuses it: {error.strerror}"
        mounts.umount(self._place, mounts.MNT_DETACH)
        return ""
