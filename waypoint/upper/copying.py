"""Copying the content of a file: holes stay holes, and what can be shared on disk is."""

import errno
import os

_COPY_BYTES = 1 << 20
_NOT_SHARED = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # copy_file_range(2): not of one file system


def copy_content(origin: int, copy: int, facts: os.stat_result) -> None:
    """Copy what the file `origin` has into the new file `copy`, both descriptors. `facts`: of `origin`. If that is cut
    meanwhile, the copy is as short. Raises OSError.
    """
    size, place = facts.st_size, 0
    end = size
    has_holes = facts.st_blocks * 512 < size
    if has_holes:
        os.ftruncate(copy, size)
    while place < size:
        if has_holes:
            try:
                place = os.lseek(origin, place, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # which is: a hole up to the end
                    raise
                break
            end = os.lseek(origin, place, os.SEEK_HOLE)
        copied = _copy_piece(origin, copy, place, end - place)
        if copied == 0:  # a file of the base, which the machine has cut meanwhile
            break
        place += copied


def _copy_piece(origin: int, copy: int, place: int, size: int) -> int:
    """Copy up to `size` bytes. Returns how many. On btrfs the two files share what comes out of the pool: that takes no
    room for data, of which a full pool has none.
    """
    try:
        return os.copy_file_range(origin, copy, size, place, place)
    except OSError as error:
        if error.errno not in _NOT_SHARED:
            raise
    data = os.pread(origin, min(_COPY_BYTES, size), place)
    return os.pwrite(copy, data, place)
