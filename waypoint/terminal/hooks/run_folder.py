"""The folder /run/waypoint of a session, which the daemon and the session's shell share (docs/protocol.md, section 3).

The daemon reaches the folder through a directory fd. The folder belongs to the session's user, who may put anything
there, so the daemon follows no links, checks the type of each file it opens, and limits how much it reads.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from waypoint.linux.storage import beneath, idmapped
from waypoint.model.ids import random_hex
from waypoint.model.paths import RUN_FOLDER

T = TypeVar("T")

_ASIDE = ".waypoint-"  # prefix of the daemon's files in the spare folder, which other programs use too
_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EROFS, errno.EIO)  # a file system that became read-only after a disk error returns both

MOST_NAMES = 4096


class Spare(NamedTuple):
    """A folder on the session's tmpfs, where files are written while the disk is full. `path`: its path inside the
    session. `open`: returns a descriptor, which the caller closes.
    """

    path: str
    open: Callable[[], int]


class RunFolder:
    """The folder that `fd` refers to; the caller closes `fd`. New files belong to the folder's owner and have mode
    0600.
    """

    def __init__(self, fd: int, spare: Spare) -> None:
        """`spare`: the folder into which a file is written if the disk is full. This folder then gets a symbolic link
        to that file, if the disk has room for the link. If there is no link, the hooks look into the spare folder.
        """
        self.fd = fd
        self.spare = spare
        # The owner's ids as the host sees them. Files are created with these ids, since only ids that are mapped in the
        # session may create files there (idmapped.py).
        facts = os.fstat(fd)
        self._owner = (facts.st_uid, facts.st_gid)

    def remake(self, above: int, files: dict[str, bytes]) -> None:
        """Make the folder again, with `files`, in the folder `above`, from which the session has removed it. `fd` then
        refers to the new folder. Raises OSError, also if something else is in its place.
        """
        name = os.path.basename(RUN_FOLDER)
        with idmapped.acting_as(*self._owner):
            os.mkdir(name, 0o700, dir_fd=above)
        new = beneath.open_beneath(above, name, os.O_RDONLY | os.O_DIRECTORY)
        os.dup2(new, self.fd, inheritable=False)
        os.close(new)
        for file, data in files.items():
            self.write(file, data)

    def write(self, name: str, data: bytes) -> None:
        """Replace the file by a new one that contains `data`. Not atomic: readers must wait until this has returned."""
        with contextlib.suppress(FileNotFoundError):
            self.inode(name)
            self.remove(name)
        try:
            self._write_in(self.fd, name, data)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            # On a full disk the user must still be able to run a command that frees space.
            self._write_aside(name, data)

    def _write_aside(self, name: str, data: bytes) -> None:
        spare = self.spare.open()
        try:
            aside = f"{_ASIDE}{name}"
            _unlink(spare, aside)
            self._write_in(spare, aside, data)
            # Shells that were captured by earlier versions need the link: their hooks do not search the spare folder.
            try:
                with idmapped.acting_as(*self._owner):
                    os.symlink(f"{self.spare.path}/{aside}", name, dir_fd=self.fd)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
        finally:
            os.close(spare)

    def _write_in(self, folder: int, name: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with idmapped.acting_as(*self._owner):
            fd = beneath.open_beneath(folder, name, flags, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
        except BaseException:
            _unlink(folder, name)
            raise
        finally:
            os.close(fd)

    def open_fifo(self, name: str) -> int:
        """Open the FIFO for reading and writing, non-blocking, so that neither side's open blocks. Create the FIFO if
        it is missing, and replace anything else that has its name.
        """
        for _ in range(3):
            with contextlib.suppress(FileExistsError), idmapped.acting_as(*self._owner):
                os.mkfifo(name, 0o600, dir_fd=self.fd)
            try:
                fd = beneath.open_beneath(self.fd, name, os.O_RDWR | os.O_NONBLOCK)
            except OSError:
                self.remove(name)
                continue
            facts = os.fstat(fd)
            if stat.S_ISFIFO(facts.st_mode) and facts.st_nlink == 1:
                return fd
            os.close(fd)  # the session's user put something else there
            self.remove(name)
        raise FileExistsError(f"something keeps replacing the FIFO {name} in the session's /{RUN_FOLDER}")

    def open_fifo_to_write(self, name: str) -> int:
        """Open the FIFO for writing only, non-blocking. Raises OSError with ENXIO if no process has the FIFO open for
        reading.
        """
        fd = beneath.open_beneath(self.fd, name, os.O_WRONLY | os.O_NONBLOCK)
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileExistsError(f"{name} in the session's /{RUN_FOLDER} is not a FIFO")
        return fd

    def names(self) -> list[str]:
        """List the names in the folder, at most MOST_NAMES. A session that creates more names only harms its own
        requests. The folder is opened again for this, because overlayfs caches the entries of an open folder.
        """
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            with os.scandir(fd) as found:
                return [entry.name for entry in itertools.islice(found, MOST_NAMES)]
        finally:
            os.close(fd)

    def rename(self, name: str, new: str) -> None:
        os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def read(self, name: str, limit: int, start: int = 0) -> bytes:
        """Return up to `limit` bytes of the file, from byte `start` on. Raises OSError, also if the name is a link or
        not a regular file.
        """
        fd = beneath.open_beneath(self.fd, name, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise FileExistsError(errno.EEXIST, "is not a regular file", name)
            return os.pread(fd, limit, start)
        finally:
            os.close(fd)

    def size(self, name: str) -> int:
        """Return the file's size in bytes. Raises OSError, also if the name is a link or not a regular file."""
        facts = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        if not stat.S_ISREG(facts.st_mode):
            raise FileExistsError(errno.EEXIST, "is not a regular file", name)
        return facts.st_size

    def inode(self, name: str) -> int:
        """Return the inode number of the entry `name`. Does not follow a link. Raises FileNotFoundError."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_ino

    def remove(self, name: str) -> None:
        """Remove the file, and also the file in the spare folder that `write` may have created for it."""
        with contextlib.suppress(OSError):
            if self._may_be_aside(name):
                spare = self.spare.open()
                _unlink(spare, f"{_ASIDE}{name}")
                os.close(spare)
        _unlink(self.fd, name)

    def _may_be_aside(self, name: str) -> bool:
        """True if the file's content may be in the spare folder: `name` is missing here, or is the link that `write`
        has created.
        """
        try:
            return os.readlink(name, dir_fd=self.fd) == f"{self.spare.path}/{_ASIDE}{name}"
        except OSError as error:
            return error.errno == errno.ENOENT


def read_aside(folder: RunFolder, name: str, limit: int) -> bytes:
    """Return up to `limit` bytes of the file that the hooks have written into the spare folder under `name`. Raises
    OSError, also if the file belongs to another user or is not a regular file.
    """
    spare = folder.spare.open()
    try:
        fd = beneath.open_beneath(spare, f"{_ASIDE}{name}", os.O_RDONLY | os.O_NONBLOCK)
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != folder._owner[0]:
                raise FileExistsError(errno.EEXIST, "is not a regular file of the session's user", name)
            return os.pread(fd, limit, 0)
        finally:
            os.close(fd)
    finally:
        os.close(spare)


def remove_aside(folder: RunFolder, *names: str) -> None:
    """Remove the files that the hooks have written into the spare folder under `names`."""
    with contextlib.suppress(OSError):
        spare = folder.spare.open()
        for name in names:
            _unlink(spare, f"{_ASIDE}{name}")
        os.close(spare)


async def apart(folder: RunFolder, work: Callable[[RunFolder], T]) -> T:
    """Run `work` in a thread, since the session's files may be large. Return or raise what `work` does. The thread gets
    its own descriptor, because the caller may close that of `folder` while the thread still works.
    """
    own = RunFolder(os.dup(folder.fd), folder.spare)

    def do() -> T:
        try:
            return work(own)
        finally:
            os.close(own.fd)

    return await asyncio.shield(asyncio.to_thread(do))


def _unlink(folder: int, name: str) -> None:
    """Remove the entry `name`. A directory is renamed instead, since the session may have filled it. On a file system
    that has become read-only the entry stays.
    """
    try:
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            os.rename(name, f"{name}.{random_hex(8)}", src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EPERM, errno.EACCES, *_READ_ONLY):
            raise
