"""The check whether a mount of the host can be the lower layer of an overlay: makes such an overlay, and removes it.

overlayfs refuses case-insensitive file systems (vfat, so /boot/efi and USB sticks; exfat, ntfs3; ext4 and f2fs with
casefold), automounts and some more (kernel fs/overlayfs/util.c, ovl_dentry_weird). A mount that is refused is left out
of the session; without the check the session could not start.
"""

import os
from pathlib import Path

from waypoint.linux.storage import mounts
from waypoint.linux.storage.mounts import MountRecord


class LowerCheck:
    """Called with a mount, returns why it cannot be a lower layer, or "" if it can. Each mount is tried once."""

    def __init__(self, folder: Path) -> None:
        """`folder`: takes two empty folders. The caller must be in a mount namespace of the daemon's own."""
        self._place = folder / "probe"
        self._empty = folder / "probe-empty"
        self._known: dict[MountRecord, str] = {}

    def __call__(self, mount: MountRecord) -> str:
        if not os.path.isdir(mount.mount_point):
            return "mounted on a file"
        if mount not in self._known:  # by its whole record: its id may have been another mount's
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
