"""What a session sees of the machine: one overlay per local writable mount, and a list of what is left out.

Pure planning over mountinfo records, so it can be tested with any host's table.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

from waypoint.linux.mounts import MountRecord

# File systems whose content is on this machine and may serve as a lower layer.
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
        "vfat",
        "exfat",
        "ntfs3",
        "hfsplus",
    ]
)
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


class Layer(NamedTuple):
    """A mount of the host that gets an overlay: its mount point, also its place in the session."""

    target: str


class BasePlan(NamedTuple):
    layers: list[Layer]
    left_out: list[str]


def plan_base(base: str, table: Iterable[MountRecord], *, hidden: tuple[str, ...]) -> BasePlan:
    """Plan the view of `base` (an absolute, real path).

    `table`: the host's mounts in mountinfo's order. `hidden`: folders of ours, whose own mounts are nobody's business.
    A base other than `/` is one folder: what is mounted below it is left out, and said. Layers come parents first.
    """
    on_top: dict[str, MountRecord] = {}
    for mount in table:  # the later of two at one place covers the earlier
        on_top[mount.mount_point] = mount
    layers = [Layer("/")]
    left_out: list[str] = []
    for point in sorted(on_top):
        if not _is_below(point, base) or point == base or any(_is_below(point, folder) for folder in hidden):
            continue
        mount = on_top[point]
        if mount.fstype in _KERNEL or _is_covered(point, on_top):
            continue
        if base == "/" and any(_is_below(point, own) for own in _OWN):
            continue
        reason = _why_not(mount, base)
        if reason:
            left_out.append(f"{point} ({mount.fstype}: {reason})")
        else:
            layers.append(Layer(point))
    return BasePlan(layers, left_out)


def _why_not(mount: MountRecord, base: str) -> str:
    if base != "/":
        return "mounted below the base"
    if mount.fstype not in LOCAL:
        return "not a local file system"
    if "ro" in mount.options or "ro" in mount.super_options:
        return "read-only"
    if not os.path.isdir(mount.mount_point):
        return "mounted on a file"
    return ""


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_covered(point: str, on_top: dict[str, MountRecord]) -> bool:
    """True if a mount made later above `point` hides it (mount ids grow, but are reused: parents tell the truth)."""
    mount = on_top[point]
    parent = next((other for other in on_top.values() if other.id == mount.parent), None)
    return parent is None and point != "/"
