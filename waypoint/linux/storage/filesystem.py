"""Operations that Python's `os` lacks: reserving disk space, syncing a file system, copying and removing trees.

Trees are copied, removed and measured by coreutils. They handle holes, reflinks and names of any bytes, which a loop in
Python would have to do again; but for `cp`, also paths that are longer than PATH_MAX. A tree of few files is measured
here: to start a program takes longer.
"""

import contextlib
import os
import stat
import subprocess
import threading
from collections.abc import Iterator, Sequence

from waypoint.linux.calls import libc, programs
from waypoint.linux.calls.ioctls import ioctl
from waypoint.linux.calls.paths import StrPath

_FEW = 300
"""Entries of a tree for which no program is started."""
_MOST_FOLDERS = 50
"""Open at a time."""
_WRITING_OUT_EVERY_S = 0.05
_GET_FLAGS = 0x80086601  # FS_IOC_GETFLAGS
_LOCKED = 0x10 | 0x20  # FS_IMMUTABLE_FL, FS_APPEND_FL
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
WHITEOUT_DEVICE = os.makedev(0, 0)
# Not -a: `cp -a` ignores attributes that it cannot write. Without its `trusted.overlay.opaque`, a folder would show the
# files below it that had been deleted.
_KEEP = "--preserve=mode,ownership,timestamps,links,xattr"
_COPYING = ("-dR", _KEEP, "--reflink=auto", "--sparse=auto", "--no-target-directory", "--")


def reserve_space(fd: int, size_bytes: int, path: str) -> None:
    """Allocate disk space for the first `size_bytes` of the file; a shorter file becomes that long (fallocate(2)).

    Raises OSError: ENOSPC, after which the file may have grown by a part; EOPNOTSUPP if the file system cannot reserve
    space. On copy-on-write file systems (btrfs, ZFS) the reservation covers only the first write to each block.
    """
    while True:
        try:
            libc.call("fallocate", fd, 0, 0, size_bytes, path=path)
        except InterruptedError:
            continue
        return


def sync_filesystem(path: StrPath) -> None:
    """Write out all data of the file system that `path` is on and wait for the end (syncfs(2)). Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc.call("syncfs", fd, path=os.fspath(path))
    finally:
        os.close(fd)


@contextlib.contextmanager
def writing_out(paths: Sequence[StrPath]) -> Iterator[None]:
    """While the `with` block makes files, have the file systems that the paths are on write them out, in a thread: what
    `sync_filesystem` has to wait for afterwards is short. Raises OSError when the block ends, if one could not.
    """
    ended = threading.Event()
    failed: list[OSError] = []

    def write_out() -> None:
        try:
            while not ended.wait(_WRITING_OUT_EVERY_S):
                for path in paths:
                    sync_filesystem(path)
        except OSError as error:  # the kernel tells it once
            failed.append(error)

    thread = threading.Thread(target=write_out, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failed:
        raise failed[0]


def free_bytes(path: StrPath) -> int:
    """Bytes that an unprivileged process can still write to the file system under `path` (statvfs(3), f_bavail)."""
    numbers = os.statvfs(path)
    return numbers.f_bavail * numbers.f_frsize


def is_readonly(path: StrPath) -> bool:
    """Whether the file system under `path` is read-only, by its mount or since it has met an error (statvfs(3))."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def is_locked(fd: int) -> bool:
    """Whether the open file or folder may not be changed, or only be added to (chattr +i, +a), as far as its file
    system can say.
    """
    flags = bytearray(8)
    try:
        ioctl(fd, _GET_FLAGS, flags, name="FS_IOC_GETFLAGS", path="")
    except OSError:
        return False
    return bool(flags[0] & _LOCKED)


def has_files(path: StrPath, count: int) -> bool:
    """Whether the file system under `path` can have so many more files, as far as it says (statvfs(3), f_favail): one
    that makes room for their records as it needs it (btrfs) gives no numbers.
    """
    numbers = os.statvfs(path)
    return numbers.f_files == 0 or numbers.f_favail >= count


def total_bytes(path: StrPath) -> int:
    """The size of the file system under `path` (statvfs(3), f_blocks)."""
    numbers = os.statvfs(path)
    return numbers.f_blocks * numbers.f_frsize


def make_whiteout(path: StrPath) -> None:
    """Make a whiteout, overlayfs's mark of a deleted name: a character device 0:0 (overlayfs.rst).

    Raises PermissionError if `path` itself lies on a mounted overlay.
    """
    os.mknod(path, stat.S_IFCHR, WHITEOUT_DEVICE)


def copy_tree(source: StrPath, target: StrPath) -> None:
    """Copy the folder `source` to `target`, which must be missing or an empty folder.

    Kept: owner, mode, ACL, times, all extended attributes of files and folders (trusted.* too), hard links within the
    tree, holes, symlinks, FIFOs, sockets, devices (whiteouts). Blocks are shared where the file system can (reflink).
    Lost: inode numbers, extended attributes of symlinks. Not atomic. Raises CalledProcessError with cp's message if
    something of the first list cannot be kept or the disk is full; the part that was copied until then stays.
    """
    programs.run("cp", *_COPYING, source, target)


def copy_tree_over(source: StrPath, target: StrPath) -> None:
    """As `copy_tree`, but `target` may have something: what is in the way of a file is removed, not followed."""
    programs.run("cp", "--remove-destination", *_COPYING, source, target)


def copy_tree_within(userns: int | None, source: int, target: int, *, xattrs: bool = True) -> None:
    """As `copy_tree`, from the folder behind the descriptor `source` to that behind `target`, by the root of the user
    namespace `userns`: between mounts in which only its ids have a meaning (idmapped.py). trusted.* is lost then. Not
    `xattrs`: so are all other extended attributes, as of files whose own the target may be unable to have.
    """
    copying = _COPYING if xattrs else tuple(one.replace(",xattr", "") for one in _COPYING)
    paths = [f"/proc/self/fd/{folder}/." for folder in (source, target)]  # the dot: the link itself is not copied
    if userns is None:
        programs.run("cp", *copying, *paths, pass_fds=(source, target))
        return
    there = [f"--user=/proc/self/fd/{userns}", "--setuid=0", "--setgid=0", "--"]
    programs.run("nsenter", *there, "cp", *copying, *paths, pass_fds=(userns, source, target))


def remove_tree(path: StrPath) -> None:
    """Remove the file or folder `path` with its content, but nothing on other file systems. No error if missing."""
    programs.run("rm", "-rf", "--one-file-system", "--", path)


def used_bytes(path: StrPath) -> int:
    """Disk space of a tree: hard links are counted once, blocks that are shared with other trees in full.

    Runs `du` if there are many files: some ms, and about 1 ms more per 1,000. The result is approximate if the tree
    changes meanwhile.
    """
    few = _used_by_few(path)
    if few is not None:
        return few
    try:
        words = programs.run("du", "-sx", "--block-size=1", "--", path)
    except subprocess.CalledProcessError as err:
        if not err.stdout:
            raise
        words = err.stdout  # a file was removed meanwhile: du fails, but prints the sum of the others
    return int(words.split(b"\t")[0])


def _used_by_few(path: StrPath) -> int | None:
    """`used_bytes` of a folder with few entries; None of any other, and of what cannot be read or changes meanwhile."""
    blocks: dict[tuple[int, int], int] = {}
    waiting: list[int] = []
    try:
        waiting.append(os.open(path, _FOLDER))
        device = os.fstat(waiting[0]).st_dev
        while waiting and len(blocks) <= _FEW and len(waiting) <= _MOST_FOLDERS:
            _count(waiting.pop(), device, blocks, waiting)
    except OSError:
        return None
    else:
        return None if waiting or len(blocks) > _FEW else 512 * sum(blocks.values())
    finally:
        for fd in waiting:
            os.close(fd)


def _count(folder: int, device: int, blocks: dict[tuple[int, int], int], waiting: list[int]) -> None:
    """Note the blocks of the folder and of the files in it, by inode, and open the folders in it; but nothing of other
    file systems. Closes `folder`.
    """
    try:
        facts = os.fstat(folder)
        blocks[facts.st_dev, facts.st_ino] = facts.st_blocks
        with os.scandir(folder) as found:
            for entry in found:
                facts = entry.stat(follow_symlinks=False)
                if facts.st_dev != device:
                    continue
                if stat.S_ISDIR(facts.st_mode):
                    waiting.append(os.open(entry.name, _FOLDER, dir_fd=folder))
                else:
                    blocks[facts.st_dev, facts.st_ino] = facts.st_blocks
                if len(blocks) > _FEW or len(waiting) > _MOST_FOLDERS:
                    return
    finally:
        os.close(folder)
