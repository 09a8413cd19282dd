"""Folders and files below the level of Python's `os`: space on disk, durability, copying and removing whole trees.

Trees are copied, removed and measured by coreutils, which know more of the odd cases (paths longer than the kernel
takes, holes, reflinks, names of any bytes) than a loop of ours would.
"""

import os
import stat
import subprocess

from waypoint.linux import libc, programs
from waypoint.linux.programs import StrPath

WHITEOUT_DEVICE = os.makedev(0, 0)


def reserve(fd: int, size_bytes: int, path: str) -> None:
    """Give the file the disk space for its first `size_bytes`, making it that long if it is shorter (fallocate(2)).

    Raises OSError: ENOSPC, after which the file may have become longer by a part; EOPNOTSUPP where the file system
    cannot promise space. On file systems that copy on write (btrfs, ZFS) the promise does not hold for the second
    write.
    """
    while True:
        try:
            libc.call("fallocate", fd, 0, 0, size_bytes, path=path)
        except InterruptedError:
            continue
        return


def sync_filesystem(path: StrPath) -> None:
    """Write out all data of the file system that `path` is on, and wait for it (syncfs(2)). Raises OSError if it
    failed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc.call("syncfs", fd, path=os.fspath(path))
    finally:
        os.close(fd)


def free_bytes(path: StrPath) -> int:
    """What an unprivileged process may still write to the file system under `path` (statvfs(3), f_bavail)."""
    numbers = os.statvfs(path)
    return numbers.f_bavail * numbers.f_frsize


def total_bytes(path: StrPath) -> int:
    numbers = os.statvfs(path)
    return numbers.f_blocks * numbers.f_frsize


def make_whiteout(path: StrPath) -> None:
    """Make overlayfs's mark of a deleted name: a character device 0:0. Raises PermissionError on overlayfs itself."""
    os.mknod(path, stat.S_IFCHR, WHITEOUT_DEVICE)


def copy_tree(source: StrPath, target: StrPath) -> None:
    """Copy the folder `source` to `target`, which must not exist or be an empty folder.

    Kept: owner, mode, ACL, times, all extended attributes of files and folders (trusted.* too), hard links within the
    tree, holes, symlinks, FIFOs, sockets, devices (whiteouts). Blocks are shared where the file system can (reflink).
    Lost: inode numbers, extended attributes of symlinks. Not atomic. Raises CalledProcessError with cp's words at the
    first thing that cannot be kept, also when the disk is full; what was copied until then stays.
    """
    # Not plain -a: that one passes over attributes it could not write, and a lost `trusted.overlay.opaque` brings
    # deleted files back to life.
    keep = "--preserve=mode,ownership,timestamps,links,xattr"
    programs.run("cp", "-dR", keep, "--reflink=auto", "--sparse=auto", "--no-target-directory", "--", source, target)


def remove_tree(path: StrPath) -> None:
    """Remove a file or a folder of any depth, without leaving its file system. Missing is fine."""
    programs.run("rm", "-rf", "--one-file-system", "--", path)


def used_bytes(path: StrPath) -> int:
    """Disk space of a tree: its blocks, hard links counted once, blocks shared with other trees in full.

    Costs a process and a walk: some ms, and about 1 ms per 1,000 files. A tree that changes meanwhile is counted
    roughly.
    """
    try:
        words = programs.run("du", "-sx", "--block-size=1", "--", path)
    except subprocess.CalledProcessError as err:
        if not err.stdout:
            raise
        words = err.stdout  # something vanished on the way; the sum of the rest is printed all the same
    return int(words.split(b"\t")[0])
