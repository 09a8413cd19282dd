"""What a session sees of the machine: one overlay per local writable mount, and a list of what is left out.

Pure planning over mountinfo records, so it can be tested with any host's table.
"""

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from waypoint.linux.mounts import MountRecord

# File systems whose content is on this machine.
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
_ROOT_FOLDER = "m0"
# Never of the base: the session has its own of these, or they are views of the kernel.
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


class Layer(NamedTuple):
    """A mount of the host that gets an overlay: its mount point, also its place in the session."""

    target: str

    @property
    def folder(self) -> str:
        """Where its changes lie in a session's tree. Named after the mount point: the host's mounts come and go, and
        what was written in one must not appear in another.
        """
        return _ROOT_FOLDER if self.target == "/" else f"m{quote(os.fsencode(self.target), safe='')}"


class BasePlan(NamedTuple):
    layers: list[Layer]
    left_out: list[str]

    def tell_lost(self, folders: Iterable[str]) -> list[str]:
        """What a tree with these `folders` holds of mounts that are not among the layers, for `left_out`."""
        lost = sorted(set(folders) - {layer.folder for layer in self.layers})
        return [
            f"{os.fsdecode(unquote_to_bytes(name[1:]))} (no longer mounted here: its changes wait)" for name in lost
        ]


def plan_base(
    base: str,
    table: Iterable[MountRecord],
    *,
    later: Iterable[MountRecord] = (),
    hidden: tuple[str, ...],
    check: Callable[[MountRecord], str],
) -> BasePlan:
    """Plan the view of `base` (an absolute, real path).

    `table`: the mounts that we see, in mountinfo's order; `later`: those that the host has besides. `hidden`: folders
    of ours, whose own mounts are nobody's business. A base other than `/` is one folder: what is mounted below it is
    left out, and said. `check` is asked of each layer to be: why not, or "". Layers come parents first.
    """
    reach = _Reach(list(table))
    layers = [Layer("/")]
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
            layers.append(Layer(point))
    return BasePlan(layers, left_out)


def _is_of_base(mount: MountRecord, base: str, hidden: tuple[str, ...]) -> bool:
    """False for what is nobody's business: elsewhere, ours, the kernel's views, the base itself."""
    point = mount.mount_point
    if not _is_below(point, base) or point == base or any(_is_below(point, folder) for folder in hidden):
        return False
    is_own = base == "/" and any(_is_below(point, own) for own in _OWN)
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
    if len(Layer(mount.mount_point).folder) > _NAME_MAX:
        return "its path is too long"
    return check(mount)


class _Reach:
    """Which mounts can be reached by their path: a later mount at the same place, or above, hides an earlier one."""

    def __init__(self, table: list[MountRecord]) -> None:
        self._by_id = {mount.id: mount for mount in table}
        self.on_top = {mount.mount_point: mount for mount in table}  # the later of two replaces the earlier

    def is_covered(self, mount: MountRecord) -> bool:
        """True unless the mount sits on the one that is seen at the nearest mount point above it."""
        above = max(
            (point for point in self.on_top if point != mount.mount_point and _is_below(mount.mount_point, point)),
            key=len,
            default=None,
        )
        if above is None:
            return False
        parent = self._by_id.get(mount.parent)
        while parent is not None and parent.mount_point == mount.mount_point:
            parent = self._by_id.get(parent.parent)
        return parent is not self.on_top[above]


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
