"""Make the mounts of a session that need the host's root (overlays, binds, tmpfs), and check all of its mounts. Such
mounts are called "mounts from outside".

At a session's start these mounts are nested, as the session sees them. A restore cannot use nested mounts: CRIU binds
each mount singly inside the new user namespace, where the kernel refuses to bind a mount without the mounts below it
(EINVAL: they are locked, mount_namespaces(7)). So for a restore each mount is made in a separate folder.

The mount points are in the session's files, so the session may have replaced them, for example by links. So mount
points are opened without following links and mounted on by descriptor, and then all mounts are compared with the plan.
A session that lacks a mount or a flag does not run.
"""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from waypoint.launch.spec import BindMount, MemoryMount, Overlay, StartSpec
from waypoint.linux.calls import abilities
from waypoint.linux.storage import access, beneath, idmapped, mounts
from waypoint.linux.storage.beneath import MountPlace
from waypoint.linux.storage.mounts import MS_NODEV, MS_NOSUID, MS_RDONLY, MountRecord
from waypoint.model.errors import StateConflict

# Paths in the session.
PROC = "/proc"
SYS = "/sys"
SHOWN_OF_SYS = ("devices/system", "kernel/mm")  # folders of sysfs, each bound into the session's /sys
TERMINALS = "/dev/pts"
NULL, NOTHING = "/dev/null", "/dev/.empty"
"""Mounted over files and folders that the session must not see. Both are read-only, as all of /dev."""

# The defaults differ between kernels, so each option is given. redirect_dir allows renames of lower folders; index and
# nfs_export would bind an upper to its lower's inodes (ESTALE after a copy); metacopy would leave data in a lower,
# which may change. With xino, stat(2) reports the same device and inode as the kernel's list of watched files
# (inotify), which CRIU compares.
OVERLAY_OPTIONS = "index=off,metacopy=off,redirect_dir=on,xino=on,nfs_export=off"
# Without root overlayfs keeps its marks in attributes user.*, and cannot redirect.
_ORDINARY_OPTIONS = "userxattr,index=off,metacopy=off,redirect_dir=nofollow,xino=on,nfs_export=off"


class FromOutside:
    """Makes the mounts of a session in the caller's mount namespace. If the session's ids are shifted, the mounts are
    idmapped, so that the owners on disk do not change.
    """

    def __init__(self, spec: StartSpec, users: Sequence[int]) -> None:
        """`users`: the descriptors of user namespaces that are sent with `spec`; empty if the ids are not shifted."""
        self._ids = spec.ids
        self._who = spec.identity
        self._userns, self._only_own = (*users, -1, -1)[:2]
        self._layers = spec.layers
        self._count = 0

    def creating(self) -> contextlib.AbstractContextManager[None]:
        """In the `with` block, files that the caller creates belong to the session's root."""
        if not self._ids.is_shifted:
            return contextlib.nullcontext()
        return idmapped.acting_as(self._ids.first, self._ids.first)

    def make_place(self, item: BindMount, merged: str) -> None:
        """Make the mount point of `item` below `merged`, if it is missing."""
        with self.creating(), MountPlace(merged).opened_fd() as folder:
            beneath.make_place(folder, item.target, is_folder=os.path.isdir(item.source))

    def overlay(self, overlay: Overlay, place: MountPlace) -> None:
        if self._ids.is_shifted:
            lowers = [path if path in overlay.ours else self._layer(path) for path in overlay.lowers]
            own = os.path.commonpath([overlay.upper, overlay.work])  # overlayfs wants both on one mount
            there = self._layer(own)
            upper, work = (there + path.removeprefix(own) for path in (overlay.upper, overlay.work))
            overlay = msgspec.structs.replace(overlay, lowers=lowers, upper=upper, work=work)
        with contextlib.ExitStack() as held:
            point = held.enter_context(place.opened())

            def opened(path: str) -> str:
                return held.enter_context(MountPlace(path).opened())

            lowers = [opened(path) for path in overlay.lowers]
            # Give paths in /proc/self/fd to mount(2), so that the session's mountinfo shows no host path and the length
            # of the paths does not matter.
            overlay = msgspec.structs.replace(
                overlay, lowers=lowers, upper=opened(overlay.upper), work=opened(overlay.work)
            )
            # Act as the session's root: as the host's root, overlayfs could not make its work folder (EOVERFLOW).
            held.enter_context(self.creating())
            mounts.mount("overlay", point, "overlay", MS_NODEV, overlay_options(overlay))

    def bind(self, item: BindMount, place: MountPlace) -> None:
        with self._origin(item) as origin, place.opened() as point:
            if self._ids.is_shifted and not item.ours:
                idmapped.attach(origin, point, self._only_own if item.as_user else self._userns)
            else:
                mounts.bind(origin, point)
        flags = (0 if item.device_nodes else MS_NODEV) | (MS_RDONLY if item.readonly else 0)
        with place.opened() as mounted:
            mounts.remount_bind(mounted, flags | MS_NOSUID | mounts.locked_flags(mounted))

    @contextlib.contextmanager
    def _origin(self, item: BindMount) -> Iterator[str]:
        """Open the source of `item` and yield its path in /proc/self/fd. Raises OSError, also if `item.as_user` is set
        and the session's user has no access to the source.
        """
        # Follow no links in a path that Waypoint did not make: a session may have put them into a bound folder.
        source = MountPlace(item.source) if item.ours else MountPlace("/", item.source)
        who = self._who
        with contextlib.ExitStack() as held:
            with access.as_user(who.uid, who.gid, who.groups) if item.as_user else contextlib.nullcontext():
                name = held.enter_context(source.opened())
                if item.as_user:
                    access.check(name, write=not item.readonly, known_as=item.source)
            yield name

    def memory(self, memory: MemoryMount, place: MountPlace) -> None:
        """Mount `memory` at `place` and copy its content there."""
        root = f"uid={self._ids.first},gid={self._ids.first}," if self._ids.is_shifted else ""
        with place.opened() as point:
            options = f"mode=1777,{root}size={memory.size_bytes},nr_inodes={memory.files}"
            mounts.mount("tmpfs", point, "tmpfs", MS_NOSUID | MS_NODEV, options)
        if not memory.content:
            return
        from waypoint.linux.storage import filesystem  # loads `threading`, which would slow every fork of the launcher

        userns = self._userns if self._ids.is_shifted else None
        with place.opened_fd() as target, idmapped.opened(memory.content, userns) as source:
            filesystem.copy_tree_within(userns, source, target)

    def _layer(self, source: str) -> str:
        """Mount the folder `source` with the session's ids, and return the mount point."""
        place = f"{self._layers}/{self._count}"
        self._count += 1
        os.makedirs(place, exist_ok=True)
        idmapped.attach(source, place, self._userns)
        return place


def overlay_options(overlay: Overlay) -> str:
    lowers = ":".join(mounts.escape(path) for path in overlay.lowers)
    places = f"lowerdir={lowers},upperdir={mounts.escape(overlay.upper)},workdir={mounts.escape(overlay.work)}"
    return f"{places},{OVERLAY_OPTIONS if abilities.own().owners else _ORDINARY_OPTIONS}"


def mount_apart(spec: StartSpec, users: Sequence[int], folder: str) -> None:
    """Make all mounts from outside at `folder`/m0, m1, ..., in this process's mount namespace. `users`: the descriptors
    that FromOutside takes.

    The mounts get their flags here, which locks the flags in the session's user namespace; flags set by CRIU would not
    be locked. If the host no longer has the folder under an overlay, the overlay shows the session's own changes over
    an empty folder. After an OSError the mounts made so far remain.
    """
    numbered = (f"{folder}/m{number}" for number in itertools.count())
    made: dict[str, str] = {}
    outside = FromOutside(spec, users)
    for overlay, place in zip(spec.overlays, numbered, strict=False):
        os.makedirs(place, exist_ok=True)
        if made and not os.path.isdir(overlay.lowers[-1]):
            with outside.creating():
                _make_mount_point(overlay.target, made)
            overlay = _over_nothing(overlay, f"{folder}/nothing")
        outside.overlay(overlay, MountPlace(place))
        made[overlay.target] = place
    for item, place in zip(spec.binds, numbered, strict=False):
        if os.path.isdir(item.source):
            os.makedirs(place, exist_ok=True)
        else:
            with open(place, "a"):
                pass  # a file can be bound only over a file
        outside.bind(item, MountPlace(place))
        made[item.target] = place
    for memory, place in zip(spec.memory, numbered, strict=False):
        os.makedirs(place, exist_ok=True)
        outside.memory(memory, MountPlace(place))
        made[memory.target] = place
    _check_mount_points([*made, PROC, TERMINALS], made)


def _check_mount_points(targets: list[str], made: dict[str, str]) -> None:
    """Raise OSError if a mount point is missing or a part of its path is a link: CRIU mounts by path, and would follow
    the link to the host's files. The mount points cannot change after this check, because no process of the session
    runs yet.
    """
    for target in targets:
        if target != "/":
            above = _above(target, made)
            try:
                with MountPlace(made[above], target.removeprefix(above)).opened_fd():
                    pass
            except OSError as error:
                raise OSError(error.errno, error.strerror, target) from error


def _above(target: str, made: dict[str, str]) -> str:
    """Return the innermost mount point in `made` that is above `target`."""
    points = (point for point in made if point != target and f"{target}/".startswith(f"{point.rstrip('/')}/"))
    return max(points, key=len)


def _make_mount_point(target: str, made: dict[str, str]) -> None:
    """Make the mount point `target`, whose folder the host no longer has, in the overlay above it. `made`: where the
    overlays are mounted, by mount point in the session.
    """
    above = _above(target, made)
    with MountPlace(made[above]).opened_fd() as folder:
        beneath.make_place(folder, target.removeprefix(above), is_folder=True)


def _over_nothing(overlay: Overlay, empty: str) -> Overlay:
    """Return `overlay` with the empty folder `empty` as its lowest layer. Make the folder if it is missing."""
    os.makedirs(empty, exist_ok=True)
    return msgspec.structs.replace(overlay, lowers=[*overlay.lowers[:-1], empty], ours=(*overlay.ours, empty))


class Misplaced(StateConflict):
    """A mount cannot be made, because the session has replaced or removed the mount point. The error has no next step;
    a caller that knows how to reach the session's files adds it.
    """


def misplaced(error: OSError) -> Misplaced | None:
    """Return `error` as a Misplaced if it has the errno MISPLACED (beneath.py), else None."""
    if error.errno != beneath.MISPLACED:
        return None
    return Misplaced(
        "mount a file system of the session at", os.fsdecode(error.filename or "/"), error.strerror or str(error)
    )


_OWN_TYPES = {"/dev": ("tmpfs",), SYS: ("tmpfs", "sysfs")} | {f"{SYS}/{part}": ("sysfs",) for part in SHOWN_OF_SYS}


class _RequiredMount(NamedTuple):
    """`target`: the mount point in the session. `fstypes`: the allowed types; empty allows any. `options`: the required
    mount options. `root`: the folder of the file system that must be mounted; "" allows any.
    """

    target: str
    fstypes: tuple[str, ...]
    options: frozenset[str]
    root: str = ""


def check_mounts(spec: StartSpec, table: Iterable[MountRecord], above: str = "") -> None:
    """Raise OSError, with the path in the session, for the first mount that `spec` requires and that `table` lacks or
    has without a required option. `above`: where the session's root is mounted.
    """
    on_top: dict[str, MountRecord] = {}
    for mount in table:
        if mount.mount_point == above or mount.mount_point.startswith(f"{above}/"):
            target = mount.mount_point.removeprefix(above) or "/"
            on_top[target] = mount
            if mount.fstype == "proc" and mount.root == "/" and target != PROC:
                raise OSError(beneath.MISPLACED, "there is a proc beside that at /proc", target)
    for required in _required_mounts(spec):
        found = on_top.get(required.target)
        if found is None:
            raise OSError(beneath.MISPLACED, "nothing is mounted there", required.target)
        is_kind = not required.fstypes or found.fstype in required.fstypes
        if not is_kind or required.root not in ("", found.root) or not required.options <= {*found.options}:
            raise _other(found, required.target)
    dev = on_top["/dev"]
    covers = [dev.root + cover.removeprefix("/dev") for cover in (NULL, NOTHING)]
    for path in spec.masked:
        found = on_top.get(path)
        if found is None:
            raise OSError(beneath.MISPLACED, "nothing is mounted there", path)
        if found.device != dev.device or found.root not in covers or "ro" not in found.options:
            raise _other(found, path)


def _other(found: MountRecord, target: str) -> OSError:
    said = f"the mount there is another: {found.fstype} of {found.root} with {','.join(found.options)}"
    return OSError(beneath.MISPLACED, said, target)


def _required_mounts(spec: StartSpec) -> Iterator[_RequiredMount]:
    for overlay in spec.overlays:
        yield _RequiredMount(overlay.target, ("overlay",), frozenset({"nodev"}))
    for bind in spec.binds:
        options = {"nosuid"} | ({"ro"} if bind.readonly else set()) | (set() if bind.device_nodes else {"nodev"})
        options |= {"idmapped"} if spec.ids.is_shifted and not bind.ours else set()
        yield _RequiredMount(bind.target, _OWN_TYPES.get(bind.target, ()) if bind.ours else (), frozenset(options))
    for memory in spec.memory:
        yield _RequiredMount(memory.target, ("tmpfs",), frozenset({"nosuid", "nodev"}))
    yield _RequiredMount(PROC, ("proc",), frozenset({"nosuid", "nodev", "noexec"}), "/")
    for name in spec.proc_readonly:
        yield _RequiredMount(f"{PROC}/{name}", ("proc",), frozenset({"ro"}), f"/{name}")
    yield _RequiredMount(TERMINALS, ("devpts",), frozenset({"nosuid", "noexec"}))
