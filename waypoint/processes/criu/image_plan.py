"""What CRIU's images ask for before any of their processes can be looked at: mounts and namespaces. And CRIU's names
for the mounts that come from outside, whose content is not in the images (criu(8), --external).

CRIU makes both as the machine's root, from what the images say, and images may have come from elsewhere (import), or
have been altered where they lie. An entry for a mount can have CRIU bind any folder of the machine, and unpack an
archive there; processes whose namespaces are those of the CRIU that dumped come back as the machine's root. So images
are taken only if they have the mounts of their session, each as the session had it, and namespaces of its own.

Sources, in CRIU's source: images/{mnt,pstree,inventory,core}.proto; criu/mount-v2.c (do_bind_mount_v2,
do_new_mount_v2), criu/filesystems.c (tmpfs_restore), criu/pstree.c (prepare_pstree_kobj_ids).
"""

import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from waypoint.linux.storage import beneath, mounts
from waypoint.model.paths import DEVICES, NOTHING, NULL, PROC, TERMINALS
from waypoint.processes.criu.images import inventory_in
from waypoint.processes.criu.lists import FILES, FILES_MAGIC, REMAPS, read_messages
from waypoint.processes.criu.messages import Field, Message, Value, decode

_MOUNTS_MAGIC, _TREE_MAGIC, _IDS_MAGIC = 0x55563928, 0x50273030, 0x54432030
_FSTYPE_PROC, _FSTYPE_DEVPTS = 1, 6
_MOUNT = Message(
    {
        "fstype": Field(1, "uint32"),
        "device": Field(3, "uint32"),
        "flags": Field(5, "uint32"),
        "root": Field(6, "string"),
        "place": Field(7, "string"),
        "source": Field(8, "string"),
        "options": Field(9, "string"),
        "with_plugin": Field(12, "bool"),
        "is_external": Field(13, "bool"),
        "deleted": Field(16, "bool"),
        "sb_flags": Field(17, "uint32"),
        "external": Field(18, "string"),
    }
)
_NAMESPACES = {"pid": 5, "net": 6, "ipc": 7, "uts": 8, "mnt": 9, "user": 10}
_IDS = Message({kind: Field(number, "uint32") for kind, number in _NAMESPACES.items()})
_INVENTORY = Message({"ids": Field(3, _IDS)})
_FILE = Message({"reg": Field(3, Message({"name": Field(6, "string")}))})
_PROCESS = Message({"pid": Field(1, "uint32")})
_MOST_BYTES = 8 << 20  # of each of these images; the largest have some hundred bytes for each mount, or process
_NEVER = ("tmpfs-", "binfmt-misc-", "autofs-")
"""Images of what is in a mount of its own. A session's mounts come from outside, or have nothing in them."""
_FLAGS = (
    mounts.MS_RDONLY
    | mounts.MS_NOSUID
    | mounts.MS_NODEV
    | mounts.MS_NOEXEC
    | 1 << 4  # MS_SYNCHRONOUS
    | 1 << 7  # MS_DIRSYNC
    | mounts.MS_NOATIME
    | 1 << 11  # MS_NODIRATIME
    | mounts.MS_PRIVATE
    | 1 << 21  # MS_RELATIME
    | 1 << 24  # MS_STRICTATIME
    | 1 << 25  # MS_LAZYTIME
)
"""What a mount may have: how it is used, and nothing that makes another mount of it (MS_BIND, MS_MOVE, MS_REMOUNT)."""


class ImagePlan(NamedTuple):
    """The mounts of a session. `outside`: the mount points of those from outside, in the order of their numbers
    (`name_externals`). `proc_readonly`: names in /proc with a read-only mount of their own. `masked`: paths over which
    a file or folder of /dev is mounted. `own_network`: it has a network of its own.
    """

    outside: Sequence[str]
    proc_readonly: Collection[str]
    masked: Collection[str]
    own_network: bool


@dataclass(frozen=True, slots=True)
class Externals:
    """CRIU's options for the external mounts.

    `dump`, `restore`: the values of --external. `root`: for a restore, the folder where the session's root is mounted.
    """

    dump: tuple[str, ...]
    restore: tuple[str, ...]
    root: str


def name_externals(targets: Sequence[str], folder: str) -> Externals:
    """Number the external mounts with the mount points `targets`, which must contain `/`.

    `folder`: where the mounts are found for a restore, as `m0`, `m1`, ... The numbers are stored in CRIU's images, so a
    restore needs the same list in the same order.
    """
    return Externals(
        dump=tuple(f"mnt[{target}]:m{number}" for number, target in enumerate(targets)),
        restore=tuple(f"mnt[m{number}]:{folder}/m{number}" for number in range(len(targets))),
        root=f"{folder}/m{targets.index('/')}",
    )


def check(images_fd: int, plan: ImagePlan) -> None:
    """Raises ValueError, in words, if the images ask for other mounts or namespaces than those of the session that
    `plan` tells of; OSError, with beneath.MISPLACED and the place if a mount is elsewhere: who may rename what is above
    a mount point moves it.
    """
    names = os.listdir(beneath.name_of(images_fd))  # which may be open as a path alone
    if never := [name for name in names if name.startswith(_NEVER)]:
        raise ValueError(f"{never[0]} is none of a session's")
    of_mounts = [name for name in names if name.startswith("mountpoints-")]
    if len(of_mounts) != 1:
        raise ValueError(f"they have {len(of_mounts)} lists of mounts")
    _check_namespaces(images_fd, names, own_network=plan.own_network)
    _check_size(images_fd, of_mounts[0])
    _check_names(images_fd, names)
    _check_mounts([decode(_MOUNT, one) for one in read_messages(images_fd, of_mounts[0], _MOUNTS_MAGIC)], plan)


def _check_size(images_fd: int, name: str) -> None:
    found = os.stat(name, dir_fd=images_fd, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
        raise ValueError(f"{name} is no list of a session's")


def _check_namespaces(images_fd: int, names: Collection[str], *, own_network: bool) -> None:
    for name in ("inventory.img", "pstree.img"):
        _check_size(images_fd, name)
    with open(os.open("inventory.img", os.O_RDONLY | os.O_CLOEXEC, dir_fd=images_fd), "rb") as file:
        outer = decode(_INVENTORY, inventory_in(file.read())).get("ids")
    kinds = [kind for kind in _NAMESPACES if kind != "net" or own_network]
    first = next(iter(read_messages(images_fd, "pstree.img", _TREE_MAGIC)), b"")
    root, is_first = "ids-1.img", decode(_PROCESS, first).get("pid") == 1
    if not is_first or not isinstance(outer, dict) or not all(map(outer.get, _NAMESPACES)) or root not in names:
        raise ValueError("they do not tell in which namespaces their processes are")
    found = [_namespaces_in(images_fd, root), *(_namespaces_in(images_fd, one) for one in names if _is_ids(one))]
    for of_one in found:
        if of_one != found[0]:
            raise ValueError(f"their processes are in several namespaces {_differing(of_one, found[0])}")
    if shared := [kind for kind in kinds if found[0].get(kind, 0) in (0, outer[kind])]:
        raise ValueError(f"their processes have no namespace {shared[0]} of their own")
    if not own_network and found[0].get("net") != outer["net"]:
        raise ValueError("their processes have a network of their own")


def _check_names(images_fd: int, names: Collection[str]) -> None:
    """CRIU makes files that have no name by what was theirs: `..` is a folder above, for it."""
    if "reg-files.img" in names:
        raise ValueError("reg-files.img is none of a session's")
    for entry in read_messages(images_fd, FILES, FILES_MAGIC) if REMAPS in names else ():
        reg = decode(_FILE, entry).get("reg")
        if isinstance(reg, dict) and ".." in str(reg.get("name", "")).split("/"):
            raise ValueError(f"one of their open files has the name {reg.get('name')}")


def _is_ids(name: str) -> bool:
    return name.startswith("ids-") and name.endswith(".img")


def _namespaces_in(images_fd: int, name: str) -> dict[str, Value]:
    _check_size(images_fd, name)
    (entry,) = read_messages(images_fd, name, _IDS_MAGIC)
    return decode(_IDS, entry)


def _differing(one: dict[str, Value], other: dict[str, Value]) -> str:
    return ", ".join(kind for kind in _NAMESPACES if one.get(kind) != other.get(kind))


def _check_mounts(found: Sequence[dict[str, Value]], plan: ImagePlan) -> None:
    by_place = {str(one.get("place")): one for one in found}
    readonly = [f"{PROC}/{name}" for name in plan.proc_readonly]
    wanted = list(dict.fromkeys([*plan.outside, PROC, *readonly, TERMINALS, *plan.masked]))
    if lacking := [place for place in wanted if place not in by_place]:  # somebody has moved its mount point
        raise OSError(beneath.MISPLACED, "nothing is mounted there", lacking[0])
    if len(by_place) != len(found) or len(by_place) != len(wanted):
        others = sorted(by_place.keys() - {*wanted}) or ["two at one place"]
        raise ValueError(f"their mounts are not those of the session: {others[0]}")
    for place, mount in by_place.items():
        if not _is_as_wanted(place, mount, by_place, plan):
            raise ValueError(f"their mount at {place} is not that of the session")


def _is_as_wanted(place: str, mount: dict[str, Value], by_place: dict[str, dict[str, Value]], plan: ImagePlan) -> bool:
    external, flags, sb_flags = mount.get("external", ""), mount.get("flags", 0), mount.get("sb_flags", 0)
    assert isinstance(flags, int)
    assert isinstance(sb_flags, int)
    is_made_else = any(mount.get(name) for name in ("with_plugin", "is_external", "deleted"))
    may_follow = mounts.MS_SLAVE if place in plan.outside else 0  # of a mount of the machine, where those are shared
    if is_made_else or (flags & ~may_follow | sb_flags) & ~_FLAGS or ".." in f"{place}/{mount.get('root')}".split("/"):
        return False  # `..`: for CRIU the folder above
    if place in plan.outside:
        return external == ("" if place == "/" else f"m{plan.outside.index(place)}")
    if place in (PROC, TERMINALS):
        kind = _FSTYPE_PROC if place == PROC else _FSTYPE_DEVPTS
        return (external, mount.get("fstype"), mount.get("root")) == ("", kind, "/")
    if place in plan.masked:
        is_same = _is_cover(mount, by_place)
    else:
        is_same = mount.get("root") == place.removeprefix(PROC) and _is_of(mount, by_place[PROC])
    return not external and is_same and bool(flags & mounts.MS_RDONLY)


def _is_cover(mount: dict[str, Value], by_place: dict[str, dict[str, Value]]) -> bool:
    """Whether it is a mount of what covers masked paths: a file or folder of /dev, or the machine's own /dev/null."""
    devices, null = by_place[DEVICES], by_place.get(NULL)
    if null is not None and _is_of(mount, null) and mount.get("root") == null.get("root"):
        return True
    covers = {f"{devices.get('root')}{path.removeprefix(DEVICES)}" for path in (NULL, NOTHING)}
    return _is_of(mount, devices) and mount.get("root") in covers


def _is_of(mount: dict[str, Value], other: dict[str, Value]) -> bool:
    """Whether both are mounts of one file system, so that CRIU binds what the other one has."""
    return all(mount.get(name) == other.get(name) for name in ("fstype", "device", "source", "options"))
