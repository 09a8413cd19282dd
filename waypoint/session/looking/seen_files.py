"""The files of a live session, or of a capture, as a session sees them: opened from its root, links followed within.

A session's root may put a link in the place of anything at any moment. So a path is given to the kernel with a
descriptor of the root, as that of a process whose root it is (openat2(2)); what is opened is looked at by its
descriptor, and then is what is read.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from waypoint.capture.captures import Held
from waypoint.launch.ground.base import KERNEL, is_below
from waypoint.launch.ground.places import SharedPlaces
from waypoint.linux.calls import powers
from waypoint.linux.storage import access, beneath, idmapped, mounts
from waypoint.linux.storage.beneath import MountPlace
from waypoint.linux.tasks import procfs
from waypoint.model.records import HOST_IDS, NOBODY, IdMap, User
from waypoint.parcel.ends import Landing, Pickup, land, take_up
from waypoint.parcel.parcel_records import ParcelItem
from waypoint.parcel.unpack_parcel import Owners
from waypoint.session.live.session import LiveSession
from waypoint.session.looking.overlay_view import ShownMount, made_place, mount_view
from waypoint.upper import layout
from waypoint.upper.changes import has_entries

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFile(Exception):
    """What was to be read has no content of its own. `is_folder`: because it is a folder."""

    def __init__(self, said: str, *, is_folder: bool = False) -> None:
        super().__init__(said)
        self.said = said
        self.is_folder = is_folder


class SeenFiles(NamedTuple):
    """`root`: a descriptor. `start`: the folder in which relative paths begin. `views`: devices (st_dev) of what is a
    view of the kernel's there. `ids`: whose owners the files show. `rights`: None: those of the session's root; else
    those of this user of it. Each call opens with them.
    """

    root: int
    start: str
    views: frozenset[int]
    ids: IdMap
    rights: User | None

    def acting(self) -> AbstractContextManager[None]:
        """In the `with` block the calling thread has the rights over files that the caller has there."""
        ids, who = self.ids, self.rights
        if not powers.is_machines():
            return contextlib.nullcontext()
        if who is None:
            return idmapped.acting_as(ids.first, ids.first) if ids.is_shifted else contextlib.nullcontext()
        return access.as_user(*self.ids_of(who))

    def ids_of(self, user: User) -> tuple[int, int, list[int]]:
        """Of a user of the session: the host's ids for the user, the group, and all groups."""
        groups = [self.ids.outside(one) for one in user.groups if _has(self.ids, one)]
        return self.ids.outside(user.uid), self.ids.outside(user.gid), groups

    def owners(self) -> Owners:
        """Who becomes the owner of what is made there: whom the machine tells, if the caller may give files away; a
        nobody in place of an id that the session lacks.
        """
        gives = self.rights is None and powers.is_machines()
        return Owners(gives, lambda one: self.ids.outside(one if _has(self.ids, one) else NOBODY), set_ids=True)

    def open_file(self, path: str) -> int:
        """A descriptor of the file at `path`, for reading. Raises OSError, NotAFile."""
        with self._found(path) as fd:
            facts = os.fstat(fd)
            kind = stat.S_IFMT(facts.st_mode)
            if kind != stat.S_IFREG:
                raise NotAFile(f"it is {_KINDS.get(kind, 'no file')}", is_folder=kind == stat.S_IFDIR)
            if facts.st_dev in self.views:
                raise NotAFile("it is a view of the kernel's")
            try:
                return os.open(beneath.name_of(fd), _READ | os.O_CLOEXEC)
            except OSError as error:
                error.filename = path
                raise

    def origin(self, path: str) -> Pickup:
        """As `take_up`, in these files."""
        return take_up(self.open_folder, self._whole(path))

    def landing(self, path: str, entry: ParcelItem) -> Landing:
        """As `land`, in these files."""
        return land(self.open_folder, self._whole(path), entry)

    def open_folder(self, path: str) -> int:
        """A descriptor of the folder at `path`, for the calls that take one. Raises OSError."""
        with self._found(path) as fd:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            return os.dup(fd)

    @contextlib.contextmanager
    def _found(self, path: str) -> Iterator[int]:
        fd = beneath.open_in_root(self.root, self._whole(path), os.O_PATH)
        try:
            yield fd
        finally:
            os.close(fd)

    def _whole(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.start.rstrip('/')}/{path}"


def _has(ids: IdMap, number: int) -> bool:
    try:
        ids.outside(number)
    except ValueError:
        return False
    return True


def of_live(live: LiveSession, rights: User | None) -> SeenFiles:
    """The files of a live session, for the caller to close `root`. Blocks. Raises OSError if it has ended."""
    record = live.record
    root = procfs.open_root(record.init_pid)
    try:
        table = mounts.read_mounts(record.init_pid)
    except BaseException:
        os.close(root)
        raise
    views = frozenset(os.makedev(*mount.device) for mount in table if mount.fstype in KERNEL)
    return SeenFiles(root, record.row.setting.cwd, views, record.ids, rights)


class CapturedFiles(NamedTuple):
    """The files of a capture. `brought`: a folder, in the form of an upper tree, with files of the base that its image
    has and the machine has otherwise; "": none.
    """

    held: Held
    brought: str = ""

    def targets(self) -> list[str]:
        """The mounts in which there is something to see, sorted, with `/`."""
        tree = self.held.files
        found = {"/"}
        for folder in filter(None, (tree, self.brought)):
            with os.scandir(folder) as entries:
                found.update(layout.target_of(entry.name) for entry in entries)
        return sorted(one for one in found if one == "/" or self._kept(one) or has_entries(layout.upper_of(tree, one)))

    def of_mount(self, target: str) -> ShownMount:
        """What there is in the mount at `target`."""
        tree = self.held.files
        return ShownMount(self.held.capture.setting, target, layout.upper_of(tree, target), kept=self._kept(target))

    def _kept(self, target: str) -> tuple[str, ...]:
        """The folders with files of the base: those that the session was given, and those that were brought."""
        trees = filter(None, (self.held.files, self.brought))
        return tuple(filter(os.path.isdir, (layout.base_of(tree, target) for tree in trees)))


def of_capture(places: SharedPlaces, captured: CapturedFiles, rights: User | None) -> SeenFiles:
    """The files of a capture, which is held as long as they are used; `root` is for the caller to close. They have the
    owners that they have on disk. Blocks. Raises OSError.
    """
    root = mounted_nowhere(places, captured)
    return SeenFiles(root, captured.held.capture.setting.cwd, frozenset(), HOST_IDS, rights)


def mounted_nowhere(places: SharedPlaces, captured: CapturedFiles, source: str = "overlay") -> int:
    """A descriptor of what a session with the capture's files would see, read-only. It is mounted nowhere, and vanishes
    with the descriptor, unless it is attached. `source`: what mountinfo tells of it then. Blocks. Raises OSError.
    """
    with made_place(places) as place:
        _mount_all(places, captured, place, source)
        try:
            return mounts.clone_whole(place)
        finally:
            mounts.umount(place, mounts.MNT_DETACH)


def _mount_all(places: SharedPlaces, captured: CapturedFiles, place: str, source: str) -> None:
    """Mount what a session with the capture's files would see below the folder `place`: `/`, and each mount of the
    machine's in which the capture has something, if it has a folder there. Raises OSError; then nothing is mounted.
    """
    hidden: list[str] = []
    mount_view(places, captured.of_mount("/"), MountPlace(place), source)
    try:
        for target in captured.targets():
            if target == "/" or any(is_below(target, one) for one in hidden):
                continue
            try:
                mount_view(places, captured.of_mount(target), MountPlace(place, target), source)
            except FileNotFoundError:
                hidden.append(target)
            except OSError as error:
                if error.errno != beneath.MISPLACED:
                    raise
                hidden.append(target)
    except BaseException:
        mounts.umount(place, mounts.MNT_DETACH)
        raise
