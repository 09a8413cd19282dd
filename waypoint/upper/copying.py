"""Copying one entry of a view or folder, with all its attributes."""

import errno
import os
import stat

from waypoint.linux.storage import beneath
from waypoint.upper.marks import OF_OVERLAYS
from waypoint.upper.views import Entry

_COPY_BYTES = 1 << 20
_NOT_SHARED = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # copy_file_range(2): two file systems
_SMALL = 2048  # bytes of files of which btrfs shares no blocks


def copy(source: Entry, target: Entry, wanted: os.stat_result) -> None:
    """Make `target`, which is missing, a copy of `source`, which is no folder and has the facts `wanted`."""
    if stat.S_ISREG(wanted.st_mode):
        _copy_file(source, target, wanted)
        return
    if stat.S_ISLNK(wanted.st_mode):
        os.symlink(os.readlink(source.name, dir_fd=source.folder), target.name, dir_fd=target.folder)
    else:  # FIFO or socket: a session cannot make device nodes
        os.mknod(target.name, stat.S_IFMT(wanted.st_mode) | 0o600, wanted.st_rdev, dir_fd=target.folder)
    take_attributes(source, target, wanted)


def _copy_file(source: Entry, target: Entry, wanted: os.stat_result) -> None:
    origin = os.open(source.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source.folder)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        copy = os.open(target.name, flags, 0o600, dir_fd=target.folder)
        try:
            made = os.fstat(copy)
            _copy_content(origin, copy, wanted)
            if (made.st_uid, made.st_gid) != (wanted.st_uid, wanted.st_gid):
                os.chown(copy, wanted.st_uid, wanted.st_gid)
            _take_mode(origin, copy, wanted)
            os.utime(copy, ns=(wanted.st_atime_ns, wanted.st_mtime_ns))
        finally:
            os.close(copy)
    finally:
        os.close(origin)


def overwrite(source: Entry, target: Entry) -> int:
    """Give the file `target` the content and times of the file `source`; return the size. Raises OSError, with the
    content unchanged if it is ETXTBSY (a program runs from it) or EWOULDBLOCK (a program has a lease on it).
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    origin = os.open(source.name, os.O_RDONLY | flags, dir_fd=source.folder)
    try:
        copy = os.open(target.name, os.O_WRONLY | flags, dir_fd=target.folder)
        try:
            wanted = os.fstat(origin)
            has_holes = wanted.st_blocks * 512 < wanted.st_size
            if has_holes or os.fstat(copy).st_size > wanted.st_size:
                os.ftruncate(copy, 0 if has_holes else wanted.st_size)
            _copy_content(origin, copy, wanted)
            os.utime(copy, ns=(wanted.st_atime_ns, wanted.st_mtime_ns))
        finally:
            os.close(copy)
    finally:
        os.close(origin)
    return wanted.st_size


def _copy_content(origin: int, copy: int, wanted: os.stat_result) -> None:
    size, place = wanted.st_size, 0
    end = size
    has_holes = wanted.st_blocks * 512 < size
    if has_holes:
        os.ftruncate(copy, size)
    while place < size:
        if has_holes:
            try:
                place = os.lseek(origin, place, os.SEEK_DATA)
            except OSError:  # ENXIO: a hole up to the end
                break
            end = os.lseek(origin, place, os.SEEK_HOLE)
        copied = _copy_piece(origin, copy, place, end - place)
        if copied == 0:  # the host truncated this base file during the copy
            break
        place += copied


def _copy_piece(origin: int, copy: int, place: int, size: int) -> int:
    """Copy up to `size` bytes; return how many. Files on one btrfs share blocks, so this works in a full pool, too."""
    if size > _SMALL:
        try:
            return os.copy_file_range(origin, copy, size, place, place)
        except OSError as error:
            if error.errno not in _NOT_SHARED:
                raise
    data = os.pread(origin, min(_COPY_BYTES, size), place)
    return os.pwrite(copy, data, place)


def take_attributes(source: Entry, target: Entry, wanted: os.stat_result) -> None:
    """Give `target` the owner, mode, extended attributes and times of `source`, whose facts are `wanted`."""
    os.chown(target.name, wanted.st_uid, wanted.st_gid, dir_fd=target.folder, follow_symlinks=False)
    if not stat.S_ISLNK(wanted.st_mode):
        with source.opened() as one, target.opened() as other:
            _take_mode(beneath.name_of(one), beneath.name_of(other), wanted)
    take_times(source, target)


def _take_mode(origin: int | str, copy: int | str, wanted: os.stat_result) -> None:
    os.chmod(copy, stat.S_IMODE(wanted.st_mode))
    kept = {name for name in os.listxattr(origin) if not name.startswith(OF_OVERLAYS)}
    for name in set(os.listxattr(copy)) - kept:
        os.removexattr(copy, name)
    for name in kept:
        os.setxattr(copy, name, os.getxattr(origin, name))


def take_times(source: Entry, target: Entry) -> None:
    facts = os.stat(source.name, dir_fd=source.folder, follow_symlinks=False)
    times = facts.st_atime_ns, facts.st_mtime_ns
    os.utime(target.name, ns=times, dir_fd=target.folder, follow_symlinks=False)
