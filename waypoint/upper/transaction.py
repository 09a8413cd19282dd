"""Changing the machine's files by a plan: all of it or nothing, also if the process is killed.

1. `stage`: each new file is made in a folder beside the files, `.waypoint-<ident>` in the root of the place, because
   rename(2) works within one mount only. What is put into a new folder is made in that folder.
2. `exchange`: each step is one rename: the new file takes its place, the old one goes to the folder beside. A new
   folder brings its content.
3. The caller records the change. Until then, `roll_back` undoes everything; the next daemon does so after a kill.
4. `settle`: the old files move to the journal, and the folder beside is removed.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator

from waypoint.linux.storage import beneath, deep
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.storage.filesystem import sync_filesystem
from waypoint.linux.storage.renaming import exchange, rename_new
from waypoint.upper import copying, git_index
from waypoint.upper.apply_journal import ApplyPlan, Journal, Left, Mark, Step
from waypoint.upper.views import READ_FOLDER, Entry

Make = Callable[[int, Step, Entry], None]
"""Makes the new entry of the step with this number, which is no folder, at a place where nothing is."""

AsUser = Callable[[], contextlib.AbstractContextManager[None]]
"""Gives the thread the caller's rights over files."""

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)


class Changed(Exception):
    """Somebody has changed the file at `path` since the plan was made."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Transaction:
    """Use it in a `with` block. Blocks. Raises OSError."""

    def __init__(self, journal: Journal, plan: ApplyPlan, as_user: AsUser = contextlib.nullcontext) -> None:
        """`as_user`: with whose rights files are made and exchanged. All else is done as root."""
        self._journal = journal
        self._as_user = as_user
        self._plan = plan
        self._held = contextlib.ExitStack()
        self._roots: list[int] = []
        self._beside: dict[int, int] = {}  # by place
        self._folder: tuple[int, str] | None = None  # which folder `_opened` is
        self._opened = -1
        self._staged: tuple[int, str] | None = None  # which folder `_staging_fd` is
        self._staging_fd = -1
        self._beside_name = f".waypoint-{journal.ident}"
        self._new_folders: dict[tuple[int, str], str] = {}  # by place and path: the path in the folder beside
        self._inside: dict[int, Left] = {}  # how steps were left that were made in a new folder

    def __enter__(self) -> "Transaction":
        with contextlib.ExitStack() as held:
            self._roots = [held.enter_context(open_folder(place)) for place in self._plan.places]
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave_folder()
        self._leave_staging()
        self._held.close()

    @property
    def folders(self) -> list[str]:
        """The folders beside that exist."""
        return [os.path.join(self._plan.places[place], self._beside_name) for place in sorted(self._beside)]

    # --- making the change

    def stage(self, make: Make) -> None:
        for place in sorted({step.place for step in self._plan.steps}):
            self._make_beside(place)
        inodes = []
        with self._as_user():
            for number, step in enumerate(self._plan.steps):
                inodes.append(0 if step.wanted is None else self._stage_one(number, step, step.wanted, make))
            for step in reversed(self._plan.steps):  # a folder's attributes may forbid to put files into it
                if step.wanted is not None and (step.place, step.name) in self._new_folders:
                    with self._staging(step.place, self._new_folders[step.place, step.name]) as entry:
                        set_attributes(entry, step.wanted)
        self._sync()
        self._journal.note_staged(inodes)

    def _make_beside(self, place: int) -> None:
        try:
            os.mkdir(self._beside_name, 0o700, dir_fd=self._roots[place])
        except OSError as error:
            error.filename = self._plan.places[place]
            raise
        fd = self._open_beside(place)
        for name in os.listxattr(fd):  # a default ACL, which all files made in it would inherit
            if name.startswith("system.posix_acl"):
                os.removexattr(fd, name)
        os.fchmod(fd, 0o700)
        os.fchown(fd, self._plan.uid, self._plan.gid)

    def _stage_one(self, number: int, step: Step, wanted: Mark, make: Make) -> int:
        above, _, name = step.name.rpartition("/")
        folder = self._new_folders.get((step.place, above)) if step.before is None else None
        is_inside = folder is not None and (wanted.is_folder or wanted.links == 1)  # `make` links names that lie beside
        path = f"{folder}/{name}" if is_inside else str(number)
        with self._naming(step), self._staging(step.place, path) as entry:
            if wanted.is_folder:
                os.mkdir(entry.name, 0o700, dir_fd=entry.folder)
                self._new_folders[step.place, step.name] = path
            else:
                make(number, step, entry)
            left = _left_at(entry, step)
        if is_inside and left is not None:
            self._inside[number] = left
        return 0 if left is None else left.now[0]

    @contextlib.contextmanager
    def _staging(self, place: int, path: str) -> Iterator[Entry]:
        """The entry at `path` of the folder beside, valid until the next call."""
        folder, _, name = path.rpartition("/")
        if not folder:
            yield Entry(self._beside[place], name)
            return
        if self._staged != (place, folder):
            self._leave_staging()
            flags = os.O_PATH | os.O_DIRECTORY
            self._staging_fd = beneath.open_beneath(self._beside[place], folder, flags, across=False)
            self._staged = place, folder
        yield Entry(self._staging_fd, name)

    def _leave_staging(self) -> None:
        if self._staged is not None:
            os.close(self._staging_fd)
            self._staged = None

    def exchange(self) -> None:
        """Raises Changed."""
        with self._as_user():
            for number, step in enumerate(self._plan.steps):
                if number not in self._inside:
                    self._take(number, step)
            for step in reversed(self._plan.folders):
                entry = self._entry(step)
                if entry is not None and step.wanted is not None:
                    set_attributes(entry, step.wanted)
        self._sync()
        files = (
            (self._inside.get(number) or self._left(step)) if step.wanted and not step.wanted.is_folder else None
            for number, step in enumerate(self._plan.steps)
        )
        self._journal.note_left([*files, *map(self._left, self._plan.folders)])

    def _take(self, number: int, step: Step) -> None:
        entry = self._entry(step)
        facts = entry.look() if entry is not None else None
        if entry is None or (facts is not None if step.before is None else not step.before.is_of(facts)):
            raise Changed(self._path_of(step))
        beside = self._beside[step.place]
        with self._naming(step):
            if step.wanted is None:
                if step.before is not None and step.before.is_folder:
                    self._remove_folder(number, entry, beside)
                else:
                    rename_new(entry.folder, entry.name, beside, str(number))
            elif step.before is None:
                rename_new(beside, str(number), entry.folder, entry.name)
            else:
                exchange(beside, str(number), entry.folder, entry.name)

    def _remove_folder(self, number: int, entry: Entry, beside: int) -> None:
        """Move an empty folder to the folder beside. Running sessions that have renamed it still use it: overlayfs
        cannot list a folder if the one of the base has been removed.
        """
        with entry.opened(READ_FOLDER) as fd:
            if os.listdir(fd):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        try:
            rename_new(entry.folder, entry.name, beside, str(number))
        except OSError as error:
            if error.errno != errno.EXDEV:  # the machine's file system is an overlay itself
                raise
            os.rmdir(entry.name, dir_fd=entry.folder)

    def _left(self, step: Step) -> Left | None:
        entry = self._entry(step)
        return None if entry is None else _left_at(entry, step)

    # --- the end: `settle`, or `roll_back`

    def settle(self) -> None:
        """Move the old files to the journal, and remove the folders beside. May be repeated."""
        self._find_beside()
        with open_folder(self._journal.kept) as kept:
            copied = [number for number, step in enumerate(self._plan.steps) if self._keep(number, step, kept)]
            if copied:
                sync_filesystem(self._journal.kept)
            for number in copied:
                os.unlink(str(number), dir_fd=self._beside[self._plan.steps[number].place])
        self._remove_beside()
        self._journal.note("settled")

    def _keep(self, number: int, step: Step, kept: int) -> bool:
        """Move an old file to the journal. Returns whether it was copied, so that the original must be removed."""
        beside = self._beside.get(step.place)
        if beside is None or step.before is None:
            return False
        source, target = Entry(beside, str(number)), Entry(kept, str(number))
        facts = source.look()
        if facts is None:
            return False
        try:
            os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            return False
        if step.before.is_folder:
            return False
        with contextlib.suppress(FileNotFoundError):  # copied before a kill, maybe in part
            os.unlink(target.name, dir_fd=target.folder)
        copying.copy(source, target, facts)
        return True

    def roll_back(self) -> None:
        """Make everything as it was. May be repeated. To be called as root: another user may lack the rights by now.

        Raises OSError (EEXIST) if somebody has put another file where an old one was.
        """
        self._find_beside()
        inodes = self._journal.staged() or []
        for number, step in reversed(list(enumerate(self._plan.steps[: len(inodes)]))):
            self._put_back(number, step, inodes[number])
        if inodes:
            for step in reversed([*self._plan.folders, *self._plan.steps]):
                entry = self._entry(step)
                if entry is not None and step.before is not None and step.before.is_folder:
                    set_attributes(entry, step.before)
            self._journal.note_left(
                [*map(self._came_back, self._plan.steps), *map(self._came_back, self._plan.folders)]
            )
        self._remove_beside()
        self._sync()
        self._journal.note("void")

    def _put_back(self, number: int, step: Step, inode: int) -> None:
        """Undo one step, if it was taken."""
        entry = self._entry(step)
        if entry is None:
            return
        facts = entry.look()
        with self._naming(step):
            if step.wanted is not None:
                if facts is not None and facts.st_ino == inode:
                    self._take_out(number, step, entry)
            elif (old := self._old(number, step)) is not None:
                rename_new(old.folder, old.name, entry.folder, entry.name)
            elif step.before is not None and step.before.is_folder and facts is None:
                os.mkdir(entry.name, 0o700, dir_fd=entry.folder)

    def _came_back(self, step: Step) -> Left | None:
        entry = self._entry(step)
        facts = entry.look() if entry is not None else None
        if entry is None or facts is None or step.before is None or facts.st_ino != step.before.inode:
            return None
        index = git_index.digest_of(entry) if git_index.is_index(step.name) else b""
        return Left((facts.st_ino, facts.st_ctime_ns), (step.before.inode, step.before.changed_ns), index)

    def _take_out(self, number: int, step: Step, entry: Entry) -> None:
        """Remove the new entry of a step from its place, and put the old one there."""
        if step.wanted is not None and step.wanted.is_folder:
            with contextlib.suppress(OSError):  # ENOTEMPTY: somebody has put a file into it
                os.rmdir(entry.name, dir_fd=entry.folder)
        elif step.before is None:
            os.unlink(entry.name, dir_fd=entry.folder)
        elif (old := self._old(number, step)) is not None:
            exchange(old.folder, old.name, entry.folder, entry.name)

    def _old(self, number: int, step: Step) -> Entry | None:
        """The file that the step has replaced or removed, in the folder beside."""
        beside = self._beside.get(step.place)
        entry = None if beside is None else Entry(beside, str(number))
        return entry if entry is not None and entry.look() is not None else None

    # --- finding files

    def _entry(self, step: Step) -> Entry | None:
        """The entry of the step, valid until the next call; None if its folder is missing."""
        folder, _, name = step.name.rpartition("/")
        if (step.place, folder) != self._folder:
            self._leave_folder()
            flags = os.O_PATH | os.O_DIRECTORY
            try:
                self._opened = beneath.open_beneath(self._roots[step.place], folder, flags, across=False)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                return None
            self._folder = step.place, folder
        return Entry(self._opened, name)

    @contextlib.contextmanager
    def _naming(self, step: Step) -> Iterator[None]:
        """Give errors of the `with` block the path of the step."""
        try:
            yield
        except OSError as error:
            error.filename = self._path_of(step)
            raise

    def _path_of(self, step: Step) -> str:
        return os.path.join(self._plan.places[step.place], step.name)

    def _leave_folder(self) -> None:
        if self._folder is not None:
            os.close(self._opened)
            self._folder = None

    def _find_beside(self) -> None:
        for place, root in enumerate(self._roots):
            if place not in self._beside:
                with contextlib.suppress(FileNotFoundError):
                    facts = os.stat(self._beside_name, dir_fd=root, follow_symlinks=False)
                    if stat.S_ISDIR(facts.st_mode) and facts.st_uid in (0, self._plan.uid):
                        self._open_beside(place)

    def _open_beside(self, place: int) -> int:
        fd = beneath.open_beneath(self._roots[place], self._beside_name, READ_FOLDER, across=False)
        self._held.callback(os.close, fd)
        self._beside[place] = fd
        return fd

    def _remove_beside(self) -> None:
        for place in self._beside:
            deep.remove(self._roots[place], self._beside_name)
        self._beside.clear()

    def _sync(self) -> None:
        for place in {step.place for step in self._plan.steps}:
            sync_filesystem(self._plan.places[place])


def _left_at(entry: Entry, step: Step) -> Left | None:
    facts = entry.look()
    if facts is None:
        return None
    index = git_index.digest_of(entry) if git_index.is_index(step.name) else b""
    return Left((facts.st_ino, facts.st_ctime_ns), step.was, index)


def set_attributes(entry: Entry, wanted: Mark) -> None:
    """Give the folder `entry` the attributes of the mark."""
    with entry.opened(READ_FOLDER) as fd:
        facts = os.fstat(fd)
        if (facts.st_uid, facts.st_gid) != (wanted.uid, wanted.gid):
            os.fchown(fd, wanted.uid, wanted.gid)
        if stat.S_IMODE(facts.st_mode) != stat.S_IMODE(wanted.mode):
            os.fchmod(fd, stat.S_IMODE(wanted.mode))
        present = {name: os.getxattr(fd, name) for name in os.listxattr(fd) if not name.startswith("trusted.")}
        for name in present.keys() - wanted.attributes.keys():
            os.removexattr(fd, name)
        for name, value in wanted.attributes.items():
            if present.get(name) != value:
                os.setxattr(fd, name, value)
        with contextlib.suppress(PermissionError):  # another user's folder, in which the caller may make files
            os.utime(fd, ns=wanted.times_ns)
