"""Opening, making and mounting in folders whose content somebody else controls: a session's mounts, its upper trees.

Every path there may have become a link that leads to the caller's own files. So a path below such a folder is never
given to the kernel as a text: it is opened by openat2(2), which follows no link and does not leave the folder, and what
is then done is done to the descriptor. Calls that take nothing but a path get `name_of` the descriptor.
"""

import contextlib
import errno
import os
import stat
import struct
from typing import NamedTuple

from waypoint.linux.calls import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from waypoint.linux.calls.paths import StrPath

_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT = 0x01, 0x02, 0x04, 0x10  # RESOLVE_*
MISPLACED = errno.EXDEV
"""The errno for a place that is not what it was made: no call that mounts or opens gives it otherwise."""

_MOST_PATH = 1000
"""Characters of a path that is given to the kernel in one piece: at most four bytes each, and 4095 bytes in all."""

_OPEN_HOW = struct.Struct("=QQQ")  # flags, mode, resolve


def open_beneath(folder_fd: int, path: str, flags: int, mode: int = 0, *, across: bool = True) -> int:
    """Open `path` below the folder `folder_fd`, whose content somebody else may control; return the descriptor. "" and
    "/" are the folder itself.

    `..` and absolute paths cannot leave the folder. A symbolic link in any part of `path` raises OSError ELOOP. The
    descriptor is close-on-exec. `path` may be longer than a system call takes; `..` then leads out of no part of it.
    `across`: also what is mounted below the folder; else that raises OSError EXDEV.
    """
    resolve = _NO_SYMLINKS if across else _NO_SYMLINKS | _NO_XDEV
    with _near(folder_fd, path, resolve) as (near, rest):
        return _open(near, rest, flags, mode, resolve)


def open_in_root(folder_fd: int, path: str, flags: int) -> int:
    """As `open_beneath`, but links are followed as in a process whose root is the folder."""
    return _open(folder_fd, path, flags, 0, 0)


def is_in_root(root: "StrPath", path: str) -> bool:
    """Whether the folder `root` has something at `path`, links followed as by `open_in_root`."""
    try:
        with _opened_folder(root) as folder:
            os.close(open_in_root(folder, path, os.O_PATH))
    except OSError:
        return False
    return True


def read_in_root(root: "StrPath", path: str, most_bytes: int, *, across: bool = False) -> bytes | None:
    """The first `most_bytes` of the file at `path` in the folder `root`, links followed as by `open_in_root`; None if
    nothing can be read there, or it is no regular file. Waits for nobody. `across`: also on what is mounted below.
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
def _opened_folder(path: "StrPath") -> "Iterator[int]":
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _open(folder_fd: int, path: str, flags: int, mode: int, resolve: int) -> int:
    how = _OPEN_HOW.pack(flags | os.O_CLOEXEC, mode, _IN_ROOT | _NO_MAGICLINKS | resolve)
    return libc.syscall("openat2", folder_fd, os.fsencode(path) or b".", how, len(how), path=path)


@contextlib.contextmanager
def _near(folder_fd: int, path: str, resolve: int) -> "Iterator[tuple[int, str]]":
    """A folder on the way of `path` below `folder_fd` from which the rest of `path`, which is given too, is short
    enough for the kernel.
    """
    with contextlib.ExitStack() as held:
        while len(path) > _MOST_PATH:
            end = path.rfind("/", 0, _MOST_PATH) + 1 or len(path)
            folder_fd = _open(folder_fd, path[:end], os.O_PATH | os.O_DIRECTORY, 0, resolve)
            path = path[end:]
            held.pop_all().close()
            held.callback(os.close, folder_fd)
        yield folder_fd, path


@contextlib.contextmanager
def opened(folder_fd: int, path: str, flags: int = os.O_PATH, *, across: bool = True) -> "Iterator[int]":
    """`open_beneath`, closed when the `with` ends."""
    fd = open_beneath(folder_fd, path, flags, across=across)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def parent_of(folder_fd: int, path: str) -> "Iterator[tuple[int, str]]":
    """The folder in which `path` lies below `folder_fd`, for calls with a `dir_fd`, and the last name of `path`, which
    such a call must not follow. Raises OSError.
    """
    above, _, name = path.strip("/").rpartition("/")
    with opened(folder_fd, above, os.O_PATH | os.O_DIRECTORY) as fd:
        yield fd, name


def name_of(fd: int) -> str:
    """A path that leads to the very file behind `fd`, for this process alone."""
    return f"/proc/self/fd/{fd}"


def make_place(folder_fd: int, target: str, *, is_folder: bool) -> None:
    """Make the mount point `target` below `folder_fd` if it is missing, a folder or a file. Raises OSError."""
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
    """A mount point: `path`, which may be another's choice, below the folder `root`, which is not."""

    root: str
    path: str = ""

    @contextlib.contextmanager
    def opened_fd(self) -> "Iterator[int]":
        """A descriptor of what is at the place now: the mount point or, once something is mounted there, that mount's
        root. Raises OSError MISPLACED, with `path` as its path, if there is no such place, or it is behind a link.
        """
        with contextlib.ExitStack() as held:
            fd = os.open(self.root, os.O_PATH | os.O_CLOEXEC)
            held.callback(os.close, fd)
            if self.path.strip("/"):
                try:
                    fd = held.enter_context(opened(fd, self.path))
                except OSError as error:
                    raise OSError(MISPLACED, f"it is not where it was: {error.strerror}", self.path) from error
            yield fd

    @contextlib.contextmanager
    def opened(self) -> "Iterator[str]":
        """As `opened_fd`, but the descriptor's name (`name_of`). An OSError of the `with` block that has the name tells
        the place instead.
        """
        with self.opened_fd() as fd:
            name = name_of(fd)
            try:
                yield name
            except OSError as error:
                if error.filename == name:
                    error.filename = self.path or self.root
                raise
