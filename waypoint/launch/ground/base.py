"""The base of a session: which mounts of the host it sees, each through an overlay, and which are left out and why.

The plan is made from mountinfo records and upper trees only, so it can be tested with any host's mount table.
"""

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from waypoint.launch.ground.shown_mounts import is_shown
from waypoint.linux.storage.mounts import MountRecord
from waypoint.model.records import HOST_IDS, IdMap
from waypoint.upper import layout
from waypoint.upper.changes import InPlace, changed_targets, look_at

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
OWN_PLACES = ("/dev", "/proc", "/sys", "/run")
KERNEL = frozenset(
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
WAITS = "its changes there are kept, and not in sight)"
"""How a line ends that tells of a session's own changes which it does not see now."""


class BasePlan(NamedTuple):
    """`overlays`: mount points, on the host as in the session, of the mounts that get an overlay; parents first.
    `left_out`: the mounts that the session does not see, each with its reason. `ids`: the map of the session's ids, if
    that has been chosen (id_choice.py). `homes`: the homes of Waypoint that were known when the plan was made; None:
    they were not looked for. `stand_ins`: those of `overlays` that are over a stand-in for the base (apart.py).
    """

    overlays: list[str]
    left_out: list[str]
    ids: IdMap = HOST_IDS
    homes: list[str] | None = None
    stand_ins: tuple[str, ...] = ()

    def give_way(self, tree: str) -> "BasePlan":
        """The plan for a session that goes on from the upper tree at the path `tree`, which may have been made when the
        host had other mounts: no mount may hide what the session has made in its place. What is hidden all the same is
        told, with the words `WAITS`. Raises OSError.
        """
        root, *others = self.overlays
        overlays, left_out = [root], list(self.left_out)
        changed = changed_targets(tree)
        outside: list[str] = []
        for target in others:
            below = next((one for one in outside if is_below(target, one)), None)
            above = max((one for one in overlays if is_below(target, one)), key=len)
            found = look_at(layout.upper_of(tree, above), os.path.relpath(target, above))
            if below is None and (found is InPlace.NOTHING or (found is InPlace.FILES and target in changed)):
                overlays.append(target)
                if found is InPlace.FILES:
                    hint = "umount it and start the branch again"
                    left_out.append(f"{target}, as it was changed without its mount ({hint}: {WAITS}")
                continue
            outside.append(target)
            own = "has files of its own there" if found is InPlace.FILES else "has changed its mount point"
            said = f"mounted below {below}" if below else f"the session {own}"
            hint = WAITS if target in changed else "move that away and start the branch again to see the mount)"
            left_out.append(f"{target} ({said}: {hint}")
        gone = changed - {*self.overlays}
        left_out += [f"{one} (no longer mounted here: {WAITS}" for one in sorted(gone)]
        return self._replace(overlays=overlays, left_out=left_out)


def plan_base(
    base: str,
    table: Iterable[MountRecord],
    *,
    later: Iterable[MountRecord] = (),
    hidden: tuple[str, ...],
    check: Callable[[MountRecord], str],
) -> BasePlan:
    """Plan a session's view of `base`, an absolute path without links.

    `table`: the mounts that the daemon sees, in mountinfo's order; `later`: mounts that only the host has
    (host_mounts.py). `hidden`: folders of Waypoint's, the mounts below which are not mentioned. If `base` is not `/`,
    it is one folder, and mounts below it are left out. `check` is asked whether a mount can be the lower layer of an
    overlay: returns the reason why it cannot, or "".
    """
    seen = visible_mounts(table)
    overlays = ["/"]
    outside: list[str] = []
    left_out = [
        f"{mount.mount_point} ({mount.fstype}: mounted after the daemon started, and not to be had: restart the daemon)"
        for mount in later
        if _is_of_base(mount, base, hidden)
    ]
    for point in sorted(seen):
        mount = seen[point]
        if not _is_of_base(mount, base, hidden):
            continue
        above = next((one for one in outside if is_below(point, one)), None)
        reason = f"mounted below {above}" if above else _why_not(mount, base, check)
        if reason:
            left_out.append(f"{point} ({mount.fstype}: {reason})")
            outside.append(point)
        else:
            overlays.append(point)
    return BasePlan(overlays, left_out)


def _is_of_base(mount: MountRecord, base: str, hidden: tuple[str, ...]) -> bool:
    """True if a session would expect to see `mount`: it is below `base`, and neither Waypoint's nor a kernel's view."""
    point = mount.mount_point
    if not is_below(point, base) or point == base or any(is_below(point, folder) for folder in hidden):
        return False
    if is_shown(mount):  # a capture's files, for people
        return False
    is_own = base == "/" and any(is_below(point, own) for own in OWN_PLACES)
    return not is_own and mount.fstype not in KERNEL


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


def visible_mounts(table: Iterable[MountRecord]) -> dict[str, MountRecord]:
    """The mounts that can be reached by their path, by mount point: a mount is hidden by a later one at its mount
    point, or above it. `table`: in mountinfo's order.
    """
    reach = _Reach(list(table))
    return {point: mount for point, mount in reach.on_top.items() if not reach.is_covered(mount)}


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
