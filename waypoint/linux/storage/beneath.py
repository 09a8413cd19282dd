"""Safe access to files in folders whose content somebody else controls, such as a session's mounts and upper trees.

Any part of a path there may become a link to the caller's own files. So such a path is never passed to an ordinary
system call: openat2(2) opens it, follows no link and does not leave the folder, and further calls work on the
descriptor. Calls that take only a path get `name_of` the descriptor.
"""

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.calls import libc
from waypoint.linux.calls.paths import StrPath

_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT = 0x01, 0x02, 0x04, 0x10  # RESOLVE_*
MISPLACED = errno.EXDEV
"""The errno for a mount point that was replaced. Calls that mount or open raise it in no other case."""

_MOST_PATH = 1000
"""Characters of a path that is passed to the kernel in one piece: at most four bytes each, 4095 bytes in all."""

_TRIES = 100
"""Other causes of EAGAIN stay: a file has a lease, and is opened with O_NONBLOCK."""

_OPEN_HOW = struct.Struct("=QQQ")  # flags, mode, resolve


def open_beneath(folder_fd: int, path: str, flags: int, mode: int = 0, *, across: bool = True) -> int:
    """Open `path` below the folder `folder_fd`; return the descriptor, which is close-on-exec. "" and "/" are the
    folder itself.

    `..` and absolute paths cannot leave the folder. A symbolic link in any part of `path` raises OSError ELOOP. `path`
    may be longer than a system call takes; then `..` cannot leave a piece of it either. Without `across` a mount point
    in `path` raises OSError EXDEV.
    """
    resolve = _NO_SYMLINKS if across else _NO_SYMLINKS | _NO_XDEV
    with _near(folder_fd, path, resolve) as (near, rest):
        return _open(near, rest, flags, mode, resolve)


def open_in_root(folder_fd: int, path: str, flags: int) -> int:
    """Open `path` below the folder like `open_beneath`, but follow links as in a process whose root is the folder."""
    return _open(folder_fd, path, flags, 0, 0)


def is_in_root(root: StrPath, path: str) -> bool:
    """Whether `path` exists in the folder `root`; follows links as `open_in_root` does."""
    try:
        with _opened_folder(root) as folder:
            os.close(open_in_root(folder, path, os.O_PATH))
    except OSError:
        return False
    return True


def read_in_root(root: StrPath, path: str, most_bytes: int, *, across: bool = False) -> bytes | None:
    """The first `most_bytes` of the regular file at `path` in the folder `root`; None if there is none that can be
    read. Follows links as `open_in_root` does, never blocks. `across`: also read on mounts below the folder.
    """
    resolve = 0 if across else _NO_XDEV
    with contextlib.suppress(OSError), _opened_folder(root) as folder:
        fd = _open(folder, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, 0, resolve)
        try:
            return os.read(fd, most_bytes) if stat.S_ISREG(os.fstat(fd).st_mode) else None
        finally:
            os.close(fd)
    return None


@contextlib.contextmanager
def _opened_folder(path: StrPath) -> Iterator[int]:
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _open(folder_fd: int, path: str, flags: int, mode: int, resolve: int) -> int:
    how = _OPEN_HOW.pack(flags | os.O_CLOEXEC, mode, _IN_ROOT | _NO_MAGICLINKS | resolve)
    for again in range(_TRIES, 0, -1):
        try:
            return libc.syscall("openat2", folder_fd, os.fsencode(path) or b".", how, len(how), path=path)
        except BlockingIOError:  # something was renamed or mounted on the machine while the kernel looked up a `..`
            if again == 1:
                raise
    raise AssertionError


@contextlib.contextmanager
def _near(folder_fd: int, path: str, resolve: int) -> Iterator[tuple[int, str]]:
    """Split a long path: a folder of `path` below `folder_fd`, and the rest of `path`, short enough for the kernel."""
    with contextlib.ExitStack() as held:
        while len(path) > _MOST_PATH:
            end = path.rfind("/", 0, _MOST_PATH) + 1 or len(path)
            folder_fd = _open(folder_fd, path[:end], os.O_PATH | os.O_DIRECTORY, 0, resolve)
            path = path[end:]
            held.pop_all().close()
            held.callback(os.close, folder_fd)
        yield folder_fd, path


@contextlib.contextmanager
def opened(folder_fd: int, path: str, flags: int = os.O_PATH, *, across: bool = True) -> Iterator[int]:
    fd = open_beneath(folder_fd, path, flags, across=across)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def parent_of(folder_fd: int, path: str) -> Iterator[tuple[int, str]]:
    """The folder of `path` below `folder_fd`, and the last name of `path`, for calls with a `dir_fd`."""
    above, _, name = path.strip("/").rpartition("/")
    with opened(folder_fd, above, os.O_PATH | os.O_DIRECTORY) as fd:
        yield fd, name


def name_of(fd: int) -> str:
    """A path of the file behind `fd`, valid in this process only."""
    return f"/proc/self/fd/{fd}"


def make_place(folder_fd: int, target: str, *, is_folder: bool) -> None:
    """Make the mount point `target`, a folder or a file, below `folder_fd`, unless it exists."""
    *parents, last = target.strip("/").split("/")
    folder = os.dup(folder_fd)
    try:
        for name in parents:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=folder)
            below = open_beneath(folder, name, os.O_PATH | os.O_DIRECTORY)
            os.close(folder)
            folder = below
        with contextlib.suppress(FileExistsError):
            if is_folder:
                os.mkdir(last, 0o755, dir_fd=folder)
            else:
                os.close(os.open(last, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder))
        os.close(open_beneath(folder, last, os.O_PATH))
    finally:
        os.close(folder)


class MountPlace(NamedTuple):
    """A mount point. `path`, below the trusted folder `root`, may have been chosen by an untrusted user."""

    root: str
    path: str = ""

    @contextlib.contextmanager
    def opened_fd(self) -> Iterator[int]:
        """A descriptor of the mount point or, once something is mounted there, of that mount's root. Raises OSError
        MISPLACED, with `path` as its path, if the mount point is missing or behind a link.
        """
        with contextlib.ExitStack() as held:
            fd = os.open(self.root, os.O_PATH | os.O_CLOEXEC)
            held.callback(os.close, fd)
            if self.path.strip("/"):
                try:
                    fd = held.enter_context(opened(fd, self.path))
                except OSError as error:
                    raise OSError(
                        MISPLACED, f"the mount point was removed or replaced: {error.strerror}", self.path
                    ) from error
            yield fd

    @contextlib.contextmanager
    def opened(self) -> Iterator[str]:
        """Open the mount point like `opened_fd`, and yield the path of the descriptor in /proc/self/fd.

        If the `with` block raises an OSError with this path, the error gets the mount point's real path instead.
        """
        with self.opened_fd() as fd:
            name = name_of(fd)
            try:
                yield name
            except OSError as error:
                if error.filename == name:
                    error.filename = self.path or self.root
                raise
