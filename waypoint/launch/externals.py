"""The mounts that a session has from outside (overlays, binds, tmpfs), and what all of its mounts must be.

At a session's start these mounts lie inside each other, as the session sees them. A restore cannot use mounts that lie
so: CRIU binds each mount singly inside the new user namespace, where the kernel refuses to bind a mount without the
mounts below it (EINVAL: they are locked, mount_namespaces(7)). For a restore each mount is therefore made in a
separate folder.

The mount points lie in the session's files, where something else may have their names. So mount points are opened
without following links, and mounted on by descriptor, and when all is mounted, the result is compared with the plan. A
session that lacks a mount or a flag does not run.
"""

import contextlib
import errno
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from waypoint.launch.spec import BindMount, MemoryMount, Overlay, StartSpec
from waypoint.linux.calls import powers
from waypoint.linux.storage import access, beneath, idmapped, mounts
from waypoint.linux.storage.beneath import MountPlace
from waypoint.linux.storage.mounts import MS_NODEV, MS_NOSUID, MS_RDONLY, MountRecord
from waypoint.model.errors import StateConflict
from waypoint.model.paths import DEVICES, NOTHING, NULL, PROC, TERMINALS

NO_PROC = (
    "the kernel gives no /proc of their own to sessions, as where a part of /proc is covered, by a container's masks"
)
UNMASK = (
    "take away what is mounted below /proc; of a container: docker run --security-opt systempaths=unconfined, podman "
    "run --security-opt unmask=ALL, in Kubernetes procMount: Unmasked"
)

# Kernels differ in their defaults, so each option is given. redirect_dir makes renames of lower folders work; index and
# nfs_export would tie an upper to its lower's inodes (ESTALE once it is copied); metacopy would leave data in a lower,
# which may change. xino gives a file the same numbers of device and inode in stat(2) as in the kernel's list of watched
# files (inotify), which CRIU compares.
OVERLAY_OPTIONS = "index=off,metacopy=off,redirect_dir=on,xino=on,nfs_export=off"
OVERLAY_OPTIONS_OF_USER = "index=off,metacopy=off,xino=on,nfs_export=off,userxattr"
"""Of overlays that an ordinary user mounts: renaming a folder of the base is EXDEV there, on which mv(1) copies it."""


class FromOutside:
    """Makes mounts of a session in the caller's mount namespace. If the session's ids are shifted, files come in
    through idmapped mounts, so that their owners on disk stay what they are.
    """

    def __init__(self, spec: StartSpec, users: Sequence[int]) -> None:
        """`users`: descriptors of user namespaces, as they are sent with `spec`; none if the ids are the host's."""
        self._ids = spec.ids
        self._who = spec.identity
        self._userns, self._only_own = (*users, -1, -1)[:2]
        self._layers = spec.layers
        self._count = 0

    def creating(self) -> contextlib.AbstractContextManager[None]:
        """In the `with` block, what the caller creates in the session's overlays belongs to the session's root; to the
        caller, if the session has no ids of its own.
        """
        if not self._ids.is_shifted:
            return contextlib.nullcontext()
        return idmapped.acting_as(self._ids.first, self._ids.first)

    def make_place(self, item: BindMount, merged: str) -> None:
        """Make the mount point of `item` below `merged`, if it is missing. Raises OSError, as MountPlace if a link or a
        file is on the way.
        """
        try:
            with self.creating(), MountPlace(merged).opened_fd() as folder:
                beneath.make_place(folder, item.target, is_folder=os.path.isdir(item.source))
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise OSError(beneath.MISPLACED, "a link or a file is on the way", item.target) from error

    def overlay(self, overlay: Overlay, place: MountPlace) -> None:
        """Mount `overlay` at `place`. Raises OSError."""
        try:
            self._mount(overlay, place)
        except OSError as error:
            if error.errno != errno.ELOOP or not overlay.kept:
                raise
            # The pool is on the base's own file system, and overlayfs takes no lower layer that lies within another.
            copy = self._copied(overlay.kept)
            lowers = [copy if one == overlay.kept else one for one in overlay.lowers]
            self._mount(msgspec.structs.replace(overlay, lowers=lowers, ours=(*overlay.ours, copy)), place)

    def _mount(self, overlay: Overlay, place: MountPlace) -> None:
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
            # By descriptor: the session's mountinfo shows no path of the host's, however long that is.
            overlay = msgspec.structs.replace(
                overlay, lowers=lowers, upper=opened(overlay.upper), work=opened(overlay.work)
            )
            # As the host's root, overlayfs could not even make its work folder (EOVERFLOW).
            held.enter_context(self.creating())
            mounts.mount("overlay", point, "overlay", MS_NODEV, overlay_options(overlay))

    def bind(self, item: BindMount, place: MountPlace) -> None:
        """Bind `item` at `place`, with its flags. Raises OSError."""
        with self._origin(item) as origin, place.opened() as point:
            if self._ids.is_shifted and not item.ours:
                idmapped.attach(origin, point, self._only_own if item.as_user else self._userns)
            else:
                # An ordinary user may not bind a mount without those below it: they are locked.
                mounts.bind(origin, point, recursive=item.ours or not powers.is_machines())
        flags = (0 if item.device_nodes else MS_NODEV) | (MS_RDONLY if item.readonly else 0)
        with place.opened() as mounted:
            mounts.remount_bind(mounted, flags | MS_NOSUID)
            if not item.ours and not powers.is_machines():
                mounts.restrict(mounted, flags | MS_NOSUID)

    @contextlib.contextmanager
    def _origin(self, item: BindMount) -> Iterator[str]:
        """The path in /proc/self/fd of the opened source of `item`. Raises OSError, also if the source is to be bound
        with the rights of the session's user, and this user may not use it.
        """
        # A session may write to what is bound into it, so the path of another bind may lead through links by now.
        source = MountPlace(item.source) if item.ours else MountPlace("/", item.source)
        who = self._who
        with contextlib.ExitStack() as held:
            with access.as_user(who.uid, who.gid, who.groups) if item.as_user else contextlib.nullcontext():
                name = held.enter_context(source.opened())
                if item.as_user:
                    access.check(name, write=not item.readonly)
            yield name

    def memory(self, memory: MemoryMount, place: MountPlace) -> None:
        """Mount `memory` at `place` and copy its content there. Raises OSError."""
        root = self._ids.first
        with place.opened() as point:
            options = f"mode=1777,size={memory.size_bytes},nr_inodes={memory.files}"
            options += f",uid={root},gid={root}" if root else ""
            mounts.mount("tmpfs", point, "tmpfs", MS_NOSUID | MS_NODEV, options)
        if memory.content:
            self._copy(memory.content, place, xattrs=True)

    def _copy(self, folder: str, place: MountPlace, *, xattrs: bool) -> None:
        from waypoint.linux.storage import filesystem  # loads `threading`, which would slow every fork of the launcher

        userns = self._userns if self._ids.is_shifted else None
        with place.opened_fd() as target, idmapped.opened(folder, userns) as source:
            filesystem.copy_tree_within(userns, source, target, xattrs=xattrs)

    def _layer(self, source: str) -> str:
        """Mount the folder `source` with the session's ids somewhere, and return where."""
        place = self._place()
        idmapped.attach(source, place, self._userns)
        return place

    def _copied(self, source: str) -> str:
        """Mount a copy of the folder `source`, in memory and with the session's ids, somewhere, and return where."""
        place = self._place()
        root = self._ids.first
        owner = f",uid={root},gid={root}" if root else ""
        mounts.mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=0755{owner}")
        self._copy(source, MountPlace(place), xattrs=False)
        return place

    def _place(self) -> str:
        place = f"{self._layers}/{self._count}"
        self._count += 1
        os.makedirs(place, exist_ok=True)
        return place


def overlay_options(overlay: Overlay) -> str:
    """The options of mount(2) for `overlay`, with the paths escaped."""
    lowers = ":".join(mounts.escape(path) for path in overlay.lowers)
    places = f"lowerdir={lowers},upperdir={mounts.escape(overlay.upper)},workdir={mounts.escape(overlay.work)}"
    return f"{places},{OVERLAY_OPTIONS if powers.is_machines() else OVERLAY_OPTIONS_OF_USER}"


def mount_apart(spec: StartSpec, users: Sequence[int], folder: str) -> None:
    """Mount all mounts that `spec` has from outside, as `folder`/m0, m1, ..., in this process's mount namespace.
    `users`: as for FromOutside.

    The mounts get the flags that they have in the session: flags that are set here are locked in the session's user
    namespace, flags that CRIU sets there would not be. If the host has lost a mount with its folder, the session gets
    an overlay of its own changes over an empty folder. Raises OSError; the mounts made so far then stay.
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
    """Raises OSError if one of the session's mount points is missing, or is a link or behind one: CRIU mounts by path,
    and would follow it to the host's files. Nobody can change them meanwhile, since nothing of the session runs.
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
    """The mount point of those in `made` on which `target` lies."""
    points = (point for point in made if point != target and f"{target}/".startswith(f"{point.rstrip('/')}/"))
    return max(points, key=len)


def _make_mount_point(target: str, made: dict[str, str]) -> None:
    """Make the mount point `target`, a folder that the host had when the session started. It is made in the overlay
    that the session sees it in. `made`: where overlays are mounted, by mount point in the session.
    """
    above = _above(target, made)
    with MountPlace(made[above]).opened_fd() as folder:
        beneath.make_place(folder, target.removeprefix(above), is_folder=True)


def _over_nothing(overlay: Overlay, empty: str) -> Overlay:
    """`overlay`, with the folder `empty` as its lower layer. The folder is made if it is missing."""
    os.makedirs(empty, exist_ok=True)
    return msgspec.structs.replace(overlay, lowers=[*overlay.lowers[:-1], empty], ours=(*overlay.ours, empty))


class Misplaced(StateConflict):
    """A session's mount cannot be made where it must be, because something else in the session's files has the name of
    its mount point. A caller that knows how to get at those files sets the next step.
    """


def misplaced(error: OSError) -> Misplaced | None:
    """`error` as a Misplaced, if it says that something else is in a mount point's place (beneath.py)."""
    if error.errno != beneath.MISPLACED:
        return None
    return Misplaced("mount what a session needs at", os.fsdecode(error.filename or "/"), error.strerror or str(error))


class _Wanted(NamedTuple):
    """`target`: in the session. `fstypes`: the kinds that the mount may have; none: any. `options`: those it must have.
    `root`: the folder of the file system that must be there; "": any.
    """

    target: str
    fstypes: tuple[str, ...]
    options: frozenset[str]
    root: str = ""


def check_mounts(spec: StartSpec, table: Iterable[MountRecord], above: str = "") -> None:
    """Compare the mounts in `table` with those that the session `spec` must have. `above`: where the session's root is.

    Raises OSError, with the place in the session as its path, for the first one that is missing or weaker.
    """
    on_top: dict[str, MountRecord] = {}
    for mount in table:
        if mount.mount_point == above or mount.mount_point.startswith(f"{above}/"):
            target = mount.mount_point.removeprefix(above) or "/"
            on_top[target] = mount
            if mount.fstype == "proc" and mount.root == "/" and target != PROC:
                raise OSError(beneath.MISPLACED, "there is a proc beside that at /proc", target)
    for wanted in _list_wanted(spec):
        found = on_top.get(wanted.target)
        if found is None:
            raise OSError(beneath.MISPLACED, "nothing is mounted there", wanted.target)
        is_kind = not wanted.fstypes or found.fstype in wanted.fstypes
        if not is_kind or wanted.root not in ("", found.root) or not wanted.options <= {*found.options}:
            raise _other(found, wanted.target)
    dev = on_top[DEVICES]
    covers = {(dev.device, dev.root + cover.removeprefix(DEVICES)) for cover in (NULL, NOTHING)}
    covers |= {(node.device, node.root) for node in [on_top.get(NULL)] if node is not None}  # the node is the machine's
    for path in spec.masked:
        found = on_top.get(path)
        if found is None:
            raise OSError(beneath.MISPLACED, "nothing is mounted there", path)
        if (found.device, found.root) not in covers or "ro" not in found.options:
            raise _other(found, path)


def check_restored(spec: StartSpec, table: Sequence[MountRecord]) -> None:
    """As `check_mounts`, of all mounts of a session that CRIU has made: there are no others."""
    check_mounts(spec, table)
    places = [mount.mount_point for mount in table]
    wanted = {*(one.target for one in _list_wanted(spec)), *spec.masked}
    if others := sorted({*places} - wanted) or [place for place in places if places.count(place) > 1]:
        raise OSError(beneath.MISPLACED, "there is a mount that the session did not have", others[0])


def _other(found: MountRecord, target: str) -> OSError:
    said = f"the mount there is another: {found.fstype} of {found.root} with {','.join(found.options)}"
    return OSError(beneath.MISPLACED, said, target)


def _list_wanted(spec: StartSpec) -> Iterator[_Wanted]:
    for overlay in spec.overlays:
        yield _Wanted(overlay.target, ("overlay",), frozenset({"nodev"}))
    for bind in spec.binds:
        options = {"nosuid"} | ({"ro"} if bind.readonly else set()) | (set() if bind.device_nodes else {"nodev"})
        options |= {"idmapped"} if spec.ids.is_shifted and not bind.ours else set()
        kinds = {"/sys": ("sysfs",), DEVICES: ("tmpfs",)}.get(bind.target, ())
        yield _Wanted(bind.target, kinds, frozenset(options))
    for memory in spec.memory:
        yield _Wanted(memory.target, ("tmpfs",), frozenset({"nosuid", "nodev"}))
    yield _Wanted(PROC, ("proc",), frozenset({"nosuid", "nodev", "noexec"}), "/")
    for name in spec.proc_readonly:
        yield _Wanted(f"{PROC}/{name}", ("proc",), frozenset({"ro"}), f"/{name}")
    yield _Wanted(TERMINALS, ("devpts",), frozenset({"nosuid", "noexec"}))
