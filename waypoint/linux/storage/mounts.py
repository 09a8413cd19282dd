"""Mounting and unmounting (mount(2), umount2(2), pivot_root(2)) and the table of mounts (proc_pid_mountinfo(5)).

All functions act on the mount namespace of the calling thread.
"""

import contextlib
import errno
import os
import re
from dataclasses import dataclass

from waypoint.linux.calls import abilities, libc
from waypoint.linux.calls.paths import StrPath
from waypoint.linux.storage import descriptors

MS_RDONLY = 1
MS_NOSUID = 1 << 1
MS_NODEV = 1 << 2
MS_NOEXEC = 1 << 3
MS_REMOUNT = 1 << 5
MS_NOATIME = 1 << 10
MS_BIND = 1 << 12
MS_REC = 1 << 14
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8
_LOCKED = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC  # statvfs(3) has the same numbers
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x04, 0x40
_AT_FDCWD = -100

# mount(2) copies one page of options and silently drops the rest (fs/namespace.c, copy_mount_options).
MAX_DATA_BYTES = 4095

# Kernels differ in their defaults, and log a warning if an option is on that a layer does not support.
_PLAIN_OVERLAY = "index=off,metacopy=off,redirect_dir=off,xino=off,nfs_export=off"

_OCTAL = re.compile(rb"\\([0-7]{3})")
_OVERLAY_SPECIAL = re.compile(r"([\\,:])")


@dataclass(frozen=True, slots=True)
class MountRecord:
    """One line of mountinfo, decoded like file names (`os.fsdecode`) and without octal escapes.

    `device`: (major, minor) of st_dev. `root`: the mounted folder of the file system; ends in `//deleted` if it was
    removed. `optional`: propagation, such as `shared:3`. `options`: of the mount. `super_options`: of the file system.
    """

    id: int
    parent: int
    device: tuple[int, int]
    root: str
    mount_point: str
    options: tuple[str, ...]
    optional: tuple[str, ...]
    fstype: str
    source: str
    super_options: tuple[str, ...]


def mount(source: StrPath | None, target: StrPath, fstype: str | None = None, flags: int = 0, data: str = "") -> None:
    """Call mount(2). `data`: the options; pass paths in overlay's options through `escape` first. Raises OSError with
    `target` as its file name; E2BIG if `data` is longer than MAX_DATA_BYTES.
    """
    options = os.fsencode(data)
    if len(options) > MAX_DATA_BYTES:
        raise OSError(
            errno.E2BIG, f"mount: {len(options)} bytes of options, but the kernel accepts only {MAX_DATA_BYTES}", target
        )
    libc.call(
        "mount",
        None if source is None else os.fsencode(source),
        os.fsencode(target),
        None if fstype is None else fstype.encode(),
        flags,
        options or None,
        path=os.fspath(target),
    )


def umount(target: StrPath, flags: int = 0) -> None:
    """Call umount2(2). Raises OSError: EBUSY if in use (not with MNT_DETACH), EINVAL if `target` is no mount point."""
    libc.call("umount2", os.fsencode(target), flags, path=os.fspath(target))


def bind(source: StrPath, target: StrPath, *, recursive: bool = False) -> None:
    """Bind-mount `source` at `target`, with its flags; with `recursive`, together with the mounts below it."""
    mount(source, target, None, MS_BIND | (MS_REC if recursive else 0))


def remount_bind(target: StrPath, flags: int) -> None:
    """Replace the flags (MS_RDONLY...) of the mount at `target`, but not those of its file system. In a user namespace
    that does not own the mount, clearing a flag raises PermissionError (mount_namespaces(7), "Restrictions").
    """
    mount(None, target, None, MS_REMOUNT | MS_BIND | flags)


def locked_flags(target: StrPath) -> int:
    """The flags of the mount at `target` that this process must not clear in `remount_bind`. Root may clear all."""
    if abilities.own().whole_mounts:
        return 0
    return os.statvfs(target).f_flag & _LOCKED


def make_slave(path: StrPath) -> None:
    """Make the mount at `path` and those below it slaves: mount events propagate in but not out."""
    mount(None, path, None, MS_REC | MS_SLAVE)


def make_private(path: StrPath) -> None:
    """Make the mount at `path` and those below it private: mount events propagate neither in nor out."""
    mount(None, path, None, MS_REC | MS_PRIVATE)


def keep_writes_apart(folder: str, needed: str) -> None:
    """Mount an overlay over `folder` that stores all writes in memory. It lasts until the caller's mount namespace
    ends. Files in `folder` stay visible, but mounts below it do not. Every user may create files in it, as in /tmp.

    If overlayfs refuses the folder (the kernel limits how many overlays are stacked), an empty tmpfs is mounted, unless
    that would hide the file `needed`.
    """
    top = os.path.realpath(folder)
    lower = os.open(top, os.O_PATH | os.O_CLOEXEC)
    try:
        mount("tmpfs", top, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
        upper, work = f"{top}/upper", f"{top}/work"
        os.mkdir(upper)
        os.chmod(upper, 0o1777)
        os.mkdir(work, 0o700)
        places = f"lowerdir=/proc/self/fd/{lower},upperdir={escape(upper)},workdir={escape(work)}"
        with contextlib.suppress(OSError):
            mount("overlay", top, "overlay", MS_NOSUID | MS_NODEV, f"{places},{_PLAIN_OVERLAY}")
            if os.path.exists(needed):
                return
            umount(top, MNT_DETACH)
        if not os.path.exists(needed):
            umount(top, MNT_DETACH)
    finally:
        os.close(lower)


def clone(source: StrPath) -> int:
    """A descriptor of a new, detached mount of the file or folder `source`, without the mounts below it. It vanishes
    with the descriptor unless `attach` is called.
    """
    return libc.syscall(
        "open_tree", _AT_FDCWD, os.fsencode(source), _OPEN_TREE_CLONE | os.O_CLOEXEC, path=os.fspath(source)
    )


def attach(tree: int, point: StrPath) -> None:
    """Mount `tree`, which `clone` has made in any mount namespace, at `point`, a path or the name of a descriptor."""
    place = os.open(point, os.O_PATH | os.O_CLOEXEC)
    try:
        flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
        libc.syscall("move_mount", tree, b"", place, b"", flags, path=os.fspath(point))
    finally:
        os.close(place)


def pivot_root_here() -> None:
    """Make the current directory, which must be a mount point, the root, and detach the old root with its mounts, whose
    propagation must not be shared. The current directory is `/` afterwards.
    """
    libc.syscall("pivot_root", b".", b".", path=".")
    umount(".", MNT_DETACH)


def read_mounts(pid: int | str = "self") -> list[MountRecord]:
    """The mounts that process `pid` can reach from its root. Of several mounts at a mount point the last is on top."""
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        return parse_mounts(file.read())


def holding(path: StrPath) -> tuple[MountRecord, str]:
    """Return the mount that `path` is on, and `path` with its links resolved."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        number, whole = descriptors.mount_id(fd), descriptors.path_of(fd)
    finally:
        os.close(fd)
    found = next((mount for mount in read_mounts() if mount.id == number), None)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "it was unmounted meanwhile", os.fspath(path))
    return found, whole


def open_table() -> int:
    """A descriptor of the mountinfo of the calling thread's mount namespace, for `read_again`."""
    return os.open("/proc/thread-self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)


def read_again(table: int) -> bytes:
    """The present content of the mountinfo behind `table`. poll(2) reports POLLPRI for the descriptor after a
    change.
    """
    os.lseek(table, 0, os.SEEK_SET)
    return b"".join(iter(lambda: os.read(table, 1 << 16), b""))


def list_mount_points_in(path: StrPath) -> list[str]:
    """The mount points at and below `path` (absolute, without symlinks) in the caller's mount namespace."""
    whole = os.fspath(path)
    points = (record.mount_point for record in read_mounts())
    return [point for point in points if point == whole or point.startswith(f"{whole}/")]


def parse_mounts(text: bytes) -> list[MountRecord]:
    # Not splitlines(): the kernel does not escape a carriage return or form feed in a name.
    return [_parse_line(line) for line in text.split(b"\n") if line]


def _parse_line(line: bytes) -> MountRecord:
    head, separator, tail = line.partition(b" - ")
    before, after = head.split(b" "), tail.split(b" ", 2)
    if not separator or len(before) < 6 or len(after) < 3:
        raise ValueError(f"not a line of mountinfo: {line!r}")
    major, _, minor = before[2].partition(b":")
    fstype, source, super_options = after
    return MountRecord(
        id=int(before[0]),
        parent=int(before[1]),
        device=(int(major), int(minor)),
        root=_unescape(before[3]),
        mount_point=_unescape(before[4]),
        options=_split_options(before[5]),
        optional=tuple(_unescape(field) for field in before[6:] if field),
        fstype=_unescape(fstype),
        source=_unescape(source),
        super_options=_split_options(super_options),
    )


def _split_options(field: bytes) -> tuple[str, ...]:
    # Split before unescaping: the kernel escapes a comma inside a value.
    return tuple(_unescape(option) for option in field.split(b","))


def _unescape(field: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), field))


def escape(path: StrPath) -> str:
    r"""`path` as a value in overlay's options: with a backslash before `\`, `,` and `:` (fs/overlayfs/params.c)."""
    return _OVERLAY_SPECIAL.sub(r"\\\1", os.fspath(path))


def seen_from_outside(path: str) -> str:
    """The path of this process's `path` for root in another mount namespace."""
    return f"/proc/{os.getpid()}/root{path}"
