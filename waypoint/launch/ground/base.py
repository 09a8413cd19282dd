"""The base of a session: which mounts of the host it sees, each through an overlay, and which are left out and why.

The plan is made from mountinfo records only, so it can be tested with any host's mount table.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from waypoint.linux.storage.mounts import MountRecord
from waypoint.upper import layout

# File system types whose content is on this machine.
LOCAL = frozenset(
    [
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "f2fs",
        "zfs",
        "bcachefs",
        "jfs",
        "reiserfs",
        "nilfs2",
        "tmpfs",
        "overlay",
    ]
)
CASELESS = frozenset(["vfat", "msdos", "exfat", "ntfs3", "hfs", "hfsplus"])
# Mounts below these, and file systems of these types, are never part of the base: the session has its own, or they are
# views of the kernel.
_OWN = ("/dev", "/proc", "/sys", "/run")
_KERNEL = frozenset(
    [
        "proc",
        "sysfs",
        "devtmpfs",
        "devpts",
        "cgroup",
        "cgroup2",
        "securityfs",
        "debugfs",
        "tracefs",
        "pstore",
        "bpf",
        "configfs",
        "fusectl",
        "mqueue",
        "hugetlbfs",
        "efivarfs",
        "binfmt_misc",
        "rpc_pipefs",
        "autofs",
        "nsfs",
        "selinuxfs",
    ]
)


_NAME_MAX = 255


class BasePlan(NamedTuple):
    """`overlays`: mount points, on the host as in the session, of the mounts that get an overlay; parents first.
    `left_out`: the mounts that the session does not see, each with its reason.
    """

    overlays: list[str]
    left_out: list[str]

    def tell_lost(self, folders: Iterable[str]) -> list[str]:
        """Lines for `left_out` about a session's tree with these `folders`: mounts that it has changes of, and that are
        not among the overlays now.
        """
        lost = sorted(set(folders) - {layout.folder_of(target) for target in self.overlays})
        return [f"{layout.target_of(name)} (no longer mounted here: its changes wait)" for name in lost]


def plan_base(
    base: str,
    table: Iterable[MountRecord],
    *,
    later: Iterable[MountRecord] = (),
    hidden: tuple[str, ...],
    check: Callable[[MountRecord], str],
) -> BasePlan:
    """Plan a session's view of `base`, an absolute path without links.

    `table`: the mounts that the daemon sees, in mountinfo's order; `later`: mounts that only the host has. `hidden`:
    folders of Waypoint's, the mounts below which are not mentioned. If `base` is not `/`, it is one folder, and mounts
    below it are left out. `check` is asked whether a mount can be the lower layer of an overlay: returns the reason why
    it cannot, or "".
    """
    reach = _Reach(list(table))
    overlays = ["/"]
    left_out = [
        f"{mount.mount_point} ({mount.fstype}: mounted after the daemon started, and / is private: restart the daemon)"
        for mount in later
        if _is_of_base(mount, base, hidden)
    ]
    for point in sorted(reach.on_top):
        mount = reach.on_top[point]
        if not _is_of_base(mount, base, hidden) or reach.is_covered(mount):
            continue
        reason = _why_not(mount, base, check)
        if reason:
            left_out.append(f"{point} ({mount.fstype}: {reason})")
        else:
            overlays.append(point)
    return BasePlan(overlays, left_out)


def _is_of_base(mount: MountRecord, base: str, hidden: tuple[str, ...]) -> bool:
    """True if a session would expect to see `mount`: it is below `base`, and neither Waypoint's nor a kernel's view."""
    point = mount.mount_point
    if not is_below(point, base) or point == base or any(is_below(point, folder) for folder in hidden):
        return False
    is_own = base == "/" and any(is_below(point, own) for own in _OWN)
    return not is_own and mount.fstype not in _KERNEL


def _why_not(mount: MountRecord, base: str, check: Callable[[MountRecord], str]) -> str:
    if base != "/":
        return "mounted below the base"
    if mount.fstype in CASELESS:
        return "overlayfs takes no file system without regard to case"
    if mount.fstype not in LOCAL:
        return "not a local file system"
    if "ro" in mount.options or "ro" in mount.super_options:
        return "read-only"
    if len(layout.folder_of(mount.mount_point)) > _NAME_MAX:
        return "its path is too long"
    return check(mount)


class _Reach:
    """Which mounts can be reached by their path: a mount is hidden by a later one at its mount point, or above it."""

    def __init__(self, table: list[MountRecord]) -> None:
        self._by_id = {mount.id: mount for mount in table}
        self.on_top = {mount.mount_point: mount for mount in table}  # of two at one mount point the later stays

    def is_covered(self, mount: MountRecord) -> bool:
        """True if a mount above hides `mount`: its parent is not the mount that is seen at the nearest mount point
        above.
        """
        above = max(
            (point for point in self.on_top if point != mount.mount_point and is_below(mount.mount_point, point)),
            key=len,
            default=None,
        )
        if above is None:
            return False
        parent = self._by_id.get(mount.parent)
        while parent is not None and parent.mount_point == mount.mount_point:
            parent = self._by_id.get(parent.parent)
        return parent is not self.on_top[above]


def is_below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies below it, by their names alone. Both are absolute."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
