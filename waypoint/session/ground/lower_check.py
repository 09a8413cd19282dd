"""Can a mount of the host be the lower layer of an overlay? Found out by making one.

overlayfs refuses file systems without regard to case (vfat, so /boot/efi and USB sticks; exfat, ntfs3; ext4 and f2fs
with casefold), automounts and some more (fs/overlayfs/util.c, ovl_dentry_weird). One that is refused must cost its own
place in the session, not the session.
"""

import os
from pathlib import Path

from waypoint.linux import mounts
from waypoint.linux.mounts import MountRecord


class LowerCheck:
    """Tells why not, in words; "" if it can be. Each mount is tried once."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where two empty folders can be made, in a mount namespace of our own."""
        self._place = folder / "probe"
        self._empty = folder / "probe-empty"
        self._known: dict[tuple[int, str], str] = {}

    def __call__(self, mount: MountRecord) -> str:
        if not os.path.isdir(mount.mount_point):
            return "mounted on a file"
        key = mount.id, mount.mount_point
        if key not in self._known:
            self._known[key] = self._try(mount.mount_point)
        return self._known[key]

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
