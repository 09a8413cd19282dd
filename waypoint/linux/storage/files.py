"""Replacing files atomically, and locking files.

Sources: rename(2), fsync(2), flock(2).
"""

import contextlib
import errno
import fcntl
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from waypoint.linux.calls.paths import StrPath


def let_in(socket: str, owner: int, group: int | None) -> None:
    """Let `owner` and the members of `group` (None: no group), besides root, connect to the socket of this name. Raises
    OSError.
    """
    os.chown(socket, owner, group if group is not None else -1)
    os.chmod(socket, 0o660 if group is not None else 0o600)


def who_is_let_in(socket: str) -> tuple[int, int | None]:
    """Owner and group (None: no group) as `let_in` was last told them. Raises OSError."""
    found = os.stat(socket)
    return found.st_uid, found.st_gid if found.st_mode & 0o060 else None


def publish(path: str, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace the file `path` by one with `content` and `mode`, in one step: readers see the whole old or new file.

    With `durable`, the new file survives a power loss that comes after the return. Callers must ensure that only one
    writes `path` at a time. Raises OSError; the old file is then still there, unless the last fsync failed.
    """
    aside = f"{path}.new"
    # Left by a crash; nobody reads this name.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)
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
    """The content of the file `path`, which must belong to this process's user or root: who could write another there
    is not obeyed. Raises OSError; PermissionError if it is somebody else's, or no file. A link is not followed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if facts.st_uid not in (0, os.geteuid()) or not stat.S_ISREG(facts.st_mode):
            raise PermissionError(errno.EPERM, "it is no file of root's", path)
        return file.read()


def read_small(path: "StrPath", most: int) -> bytes:
    """The content of a file that has at most `most` bytes. Raises OSError, also if it has more."""
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", os.fspath(path))
    return content


def open_unnamed(folder: str) -> int:
    """The descriptor of a new file for reading and writing, in `folder`, without a name there: it is gone when nobody
    has it open, whoever is killed. Raises OSError.
    """
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    path = f"{folder}/.unnamed-{os.urandom(8).hex()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return fd


def make_folder(path: str, mode: int) -> None:
    """Make the folder `path` with exactly `mode`, whatever the umask. A folder that is there stays as it is."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
        os.chmod(path, mode)


def sync_folder(path: str) -> None:
    """Make the names in the folder `path` durable: fsync(2) of a file does not write the folder's entry for it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock(path: str, *, wait: bool) -> int:
    """Take the exclusive flock(2) of the file `path`, creating the file if missing; return its descriptor.

    The lock is held until the descriptor is closed. The lock belongs to the open file description, so a child that
    inherits the descriptor holds the lock too; therefore the descriptor is close-on-exec.
    Raises BlockingIOError if another holds the lock and `wait` is False.
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
        # The previous holder has removed the file. Another process would create and lock a new one, so do the same.
        os.close(fd)


def lock_folder(path: str) -> int:
    """Wait for the exclusive flock(2) of the folder `path` itself, so that no file is left in it; return its
    descriptor, which is close-on-exec. The lock is held until the descriptor is closed. Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


@contextlib.contextmanager
def locked(path: str) -> "Iterator[int]":
    """Wait for the lock of `path` (see `lock`) and hold it until the `with` ends."""
    fd = lock(path, wait=True)
    try:
        yield fd
    finally:
        os.close(fd)


def refusal_to_write(path: str, size: int) -> OSError | None:
    """The kernel's reason why the file `path` cannot be written, or its folder has no room for `size` more bytes; None
    if it can be written. The file need not exist. Nothing is changed: the bytes go to a file without a name.
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
    """The kernel's reason why one of the files cannot be read to its end; None if each can, or is not there."""
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


def write_all(fd: int, content: "bytes | bytearray") -> None:
    """Write all of `content` to the descriptor. Raises OSError; a part may be written then."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
