"""Replacing files atomically, and locking files.

Sources: rename(2), fsync(2), flock(2).
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator


def publish(path: str, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace the file `path` atomically by one with `content` and `mode`. With `durable`, it survives a power loss
    after the return. Only one caller may write `path` at a time.
    """
    aside = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)  # left by a crash
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(fd, mode)  # open(2) has applied the umask
            write_all(fd, content)
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


def read_own(path: str) -> bytes:
    """The content of the file `path`. Raises PermissionError if it belongs to another user than this process's or root,
    or is no regular file; OSError ELOOP if it is a link.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if facts.st_uid not in (0, os.geteuid()) or not stat.S_ISREG(facts.st_mode):
            raise PermissionError(errno.EPERM, "it is not a regular file of root or of this user", path)
        return file.read()


def make_folder(path: str, mode: int) -> None:
    """Make the folder `path` with exactly `mode`, whatever the umask; an existing folder keeps its mode."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
        os.chmod(path, mode)


def sync_folder(path: str) -> None:
    """Make the names in the folder `path` durable: fsync(2) of a file does not write its entry in the folder."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock(path: str, *, wait: bool) -> int:
    """Take the exclusive flock(2) of the file `path`, creating the file if missing; return its descriptor, which holds
    the lock until it is closed. Close-on-exec: a child that inherits it would hold the lock, too. Raises
    BlockingIOError if another process holds the lock and `wait` is False.
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
        # The previous holder of the lock has removed the file, so other processes would lock a new file.
        os.close(fd)


def lock_folder(path: str) -> int:
    """Wait for the exclusive flock(2) of the folder `path`; return its descriptor, which holds the lock until
    closed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


@contextlib.contextmanager
def locked(path: str) -> Iterator[int]:
    fd = lock(path, wait=True)
    try:
        yield fd
    finally:
        os.close(fd)


def refusal_to_write(path: str, size: int) -> OSError | None:
    """The kernel's error if the file `path` cannot be written, or its folder has no room for `size` more bytes; else
    None. The file need not exist. Nothing is changed: the bytes are written to a file without a name.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        fd = os.open(os.path.dirname(path) or ".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, bytes(size))
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return None if error.errno == errno.EOPNOTSUPP else error  # a file system without nameless files
    return None


def refusal_to_read(*paths: str) -> OSError | None:
    """The kernel's error if one of the files cannot be read to its end; None if each can be, or is missing."""
    for path in paths:
        try:
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass
        except FileNotFoundError:
            continue
        except OSError as error:
            return error
    return None


def open_nameless(folder: str, mode: int) -> int | None:
    """Make a file without a name, for `give_name`; None if the file system cannot."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR):
            return None
        raise


def give_name(fd: int, path: str) -> None:
    """Give a file without a name this one, which must be free."""
    at = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # with a folder, Python calls linkat(2), which can follow the link
        os.link(str(fd), path, src_dir_fd=at, follow_symlinks=True)
    finally:
        os.close(at)


def write_all(fd: int, content: bytes | bytearray | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def write_all_at(fd: int, content: bytes, place: int) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.pwrite(fd, rest, place + len(content) - len(rest)) :]


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
