"""Files that are published whole, locks on files, and opening paths that somebody else controls.

Sources: rename(2), fsync(2), flock(2), openat2(2).
"""

import contextlib
import fcntl
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10

_OPEN_HOW = struct.Struct("=QQQ")  # flags, mode, resolve


def publish(path: str, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Make `path` a file with `content`, replacing what was there. Readers see the old file or the new one, whole.

    With `durable`, the new one is there after a power loss once this has returned. Writers must exclude each other.
    Raises OSError; the old file is then untouched, unless it was the last fsync that failed.
    """
    aside = f"{path}.new"
    # A crash may have left one; it was never seen by anybody.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(fd, mode)  # whatever the umask
            _write_all(fd, content)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(aside, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
        raise
    if durable:
        sync_folder(os.path.dirname(path) or ".")


def sync_folder(path: str) -> None:
    """Make the names in the folder `path` durable: fsync of a file does not cover the entry that leads to it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock(path: str, *, wait: bool) -> int:
    """Take the exclusive flock(2) of the file `path`, which is made if need be; it is held until the fd is closed.

    The lock belongs to the open file: children that inherit the fd would hold it too, so the fd is close-on-exec.
    Raises BlockingIOError if it is held and `wait` is False.
    """
    flags = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, flags)
            if _is_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        # The holder before us has removed the file: who comes next would lock another one.
        os.close(fd)


@contextlib.contextmanager
def locked(path: str) -> "Iterator[int]":
    """Hold the lock of `path` for the `with`, waiting for it."""
    fd = lock(path, wait=True)
    try:
        yield fd
    finally:
        os.close(fd)


def open_beneath(folder_fd: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` below the folder `folder_fd`, whose content is not to be trusted.

    `..` and absolute paths stay within the folder; a symbolic link anywhere on the way is refused (ELOOP). The new fd
    is close-on-exec.
    """
    from waypoint.linux import libc  # ctypes is slow to load and the supervisor never comes here

    resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    how = _OPEN_HOW.pack(flags | os.O_CLOEXEC, mode, resolve)
    return libc.syscall("openat2", folder_fd, os.fsencode(path), how, len(how), path=path)


def _write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
