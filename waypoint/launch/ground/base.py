"""Planning which mounts of the host a session sees, each through an overlay, and which are left out and why."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from waypoint.launch.ground.frame import Frame, split
from waypoint.linux.storage.mounts import MountRecord
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.paths import is_below
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
# Mounts below these folders and file systems of these types are never part of the base: a session has its own instance
# of them, or they are interfaces of the kernel.
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
_LATER = "mounted after the daemon started, cannot be copied: restart the daemon"


class BasePlan(NamedTuple):
    """`overlays`: the mount points (the same on the host and in the session) of the overlays, parents first.
    `left_out`: the mounts that the session does not see, with reasons. `ids`: the map of the session's ids,
    once chosen (id_choice.py). `homes`: the homes of Waypoint at that time; None: unknown. `whole_sys`: whether the
    session has all of sysfs, as in captures of earlier versions. `folder`: the base on this machine. `frame`: the root
    overlay's view of the base, if the base is no layer of it (frame.py).
    """

    overlays: list[str]
    left_out: list[Degradation]
    ids: IdMap = HOST_IDS
    homes: list[str] | None = None
    whole_sys: bool = False
    folder: str = "/"
    frame: Frame | None = None

    def give_way(self, tree: str) -> "BasePlan":
        """Return the plan for a session that continues the upper tree at the path `tree`. The tree may have been made
        when the host had other mounts, so a mount is left out if it would hide files that the session has made at its
        mount point. Files that are hidden nevertheless are reported in `left_out`, with the code `changes-hidden`.
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
                    hint = "it was changed without its mount: umount it and start the branch again"
                    left_out.append(degradation("changes-hidden", target, hint))
                continue
            outside.append(target)
            own = "has files of its own there" if found is InPlace.FILES else "has changed its mount point"
            said = f"mounted below {below}" if below else f"the session {own}"
            if target in changed:
                left_out.append(degradation("changes-hidden", target, said))
            else:
                hint = "move that away and start the branch again to see the mount"
                left_out.append(degradation("mount-left-out", target, f"{said}: {hint}"))
        gone = changed - {*self.overlays}
        left_out += [degradation("changes-hidden", one, "no longer mounted here") for one in sorted(gone)]
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
    (host_mounts.py). `hidden`: Waypoint's folders, below which mounts are not mentioned. If `base` is not `/`, mounts
    below it are left out. `check` returns why a mount cannot be the lower layer of an overlay, or "".
    """
    seen = visible_mounts(table)
    overlays = ["/"]
    outside: list[str] = []
    left_out = [
        degradation("mount-left-out", mount.mount_point, f"{mount.fstype}: {_LATER}")
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
            left_out.append(degradation("mount-left-out", point, f"{mount.fstype}: {reason}"))
            outside.append(point)
        else:
            overlays.append(point)
    return BasePlan(overlays, left_out, folder=base)


def plan_in_frame(
    base: str, table: Sequence[MountRecord], *, hidden: tuple[str, ...], own: str, check: Callable[[MountRecord], str]
) -> BasePlan:
    """Like `plan_base`, for a daemon that cannot have `base` itself as a layer (frame.py). `own`: the folder of the
    daemon's own mounts, which overlayfs does not mind.
    """
    seen = {point: mount for point, mount in visible_mounts(table).items() if not _is_one_of(point, hidden)}
    left_out = list[Degradation]()
    not_shown = {*hidden, *_OWN} if base == "/" else {*hidden}
    for point in sorted(seen):
        if point == base or not is_below(point, base):
            continue
        if not _is_of_base(seen[point], base, hidden):
            not_shown.add(point)
        elif reason := _why_not(seen[point], "/", lambda _: ""):
            left_out.append(degradation("mount-left-out", point, f"{seen[point].fstype}: {reason}"))
            not_shown.add(point)
    points = {mount.mount_point for mount in table if not is_below(mount.mount_point, own)}
    frame, lacking = split(base, points, not_shown)
    layers = []
    for layer in frame.layers:
        mount = seen.get(layer) if base == "/" else None
        reason = check(mount) if mount is not None else ""
        if reason:
            left_out.append(degradation("mount-left-out", layer, reason))
        else:
            layers.append(layer)
    frame = frame._replace(layers=tuple(layers))
    return BasePlan(["/", *(one for one in layers if one != "/")], left_out + lacking, frame=frame, folder=base)


def _is_one_of(point: str, folders: Iterable[str]) -> bool:
    return any(is_below(point, folder) for folder in folders)


def _is_of_base(mount: MountRecord, base: str, hidden: tuple[str, ...]) -> bool:
    """Whether users expect `mount` in the session: it is below `base`, and is no mount of Waypoint or of the kernel."""
    point = mount.mount_point
    if not is_below(point, base) or point == base or any(is_below(point, folder) for folder in hidden):
        return False
    is_own = base == "/" and any(is_below(point, own) for own in _OWN)
    return not is_own and mount.fstype not in _KERNEL


def _why_not(mount: MountRecord, base: str, check: Callable[[MountRecord], str]) -> str:
    if base != "/":
        return "mounted below the base"
    if mount.fstype in CASELESS:
        return "overlayfs does not accept case-insensitive file systems"
    if mount.fstype not in LOCAL:
        return "not a local file system"
    if "ro" in mount.options or "ro" in mount.super_options:
        return "read-only"
    if len(layout.folder_of(mount.mount_point)) > _NAME_MAX:
        return "its path is too long"
    return check(mount)


def visible_mounts(table: Iterable[MountRecord]) -> dict[str, MountRecord]:
    """Return the mounts that no later mount at or above their mount point hides. `table`: in mountinfo's order."""
    reach = _Reach(list(table))
    return {point: mount for point, mount in reach.on_top.items() if not reach.is_covered(mount)}


class _Reach:
    """Finds mounts that a later mount above them hides. `on_top`: the last mount at each mount point."""

    def __init__(self, table: list[MountRecord]) -> None:
        self._by_id = {mount.id: mount for mount in table}
        self.on_top = {mount.mount_point: mount for mount in table}

    def is_covered(self, mount: MountRecord) -> bool:
        """Whether the parent of `mount` is not the topmost mount at the nearest mount point above."""
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
