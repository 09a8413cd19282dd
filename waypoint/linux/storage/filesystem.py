"""Operations that Python's `os` lacks: reserving disk space, syncing a file system, copying and removing trees.

coreutils copy, remove and measure trees: they handle holes, reflinks and names of any bytes and, except `cp`, paths
that are longer than PATH_MAX.
"""

import contextlib
import os
import re
import stat
import subprocess

from waypoint.linux.calls import libc, programs
from waypoint.linux.calls.paths import StrPath

_SYNC_FILE_RANGE_WRITE = 2
WHITEOUT_DEVICE = os.makedev(0, 0)
# Not -a, because `cp -a` ignores errors in copying attributes. Without its attribute `trusted.overlay.opaque`, a folder
# of an overlay would show deleted files of the lower layer again.
_KEEP = "--preserve=mode,ownership,timestamps,links,xattr"
_COPYING = ("-dR", _KEEP, "--reflink=auto", "--sparse=auto", "--no-target-directory", "--")


def reserve_space(fd: int, size_bytes: int, path: str) -> None:
    """Allocate disk space for the first `size_bytes` of the file; a shorter file becomes that long (fallocate(2)).
    Raises OSError: ENOSPC, after which the file may have grown by a part; EOPNOTSUPP if the file system cannot.
    """
    while True:
        try:
            libc.call("fallocate", fd, 0, 0, size_bytes, path=path)
        except InterruptedError:
            continue
        return


def begin_writing_out(fd: int, offset: int, size_bytes: int) -> None:
    """Begin to write a part of a file from the page cache to the disk, without waiting (sync_file_range(2)). So an
    fsync(2) later has less to wait for. Does nothing where the file system cannot.
    """
    with contextlib.suppress(OSError):
        libc.call("sync_file_range", fd, offset, size_bytes, _SYNC_FILE_RANGE_WRITE)


def sync_filesystem(path: StrPath) -> None:
    """Write out all data of the file system that `path` is on, and wait for the end (syncfs(2))."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc.call("syncfs", fd, path=os.fspath(path))
    finally:
        os.close(fd)


def free_bytes(path: StrPath | int) -> int:
    """Bytes that an unprivileged process can still write to the file system under `path` (statvfs(3), f_bavail)."""
    numbers = os.statvfs(path)
    return numbers.f_bavail * numbers.f_frsize


def is_readonly(path: StrPath) -> bool:
    """Whether the file system under `path` is read-only, by its mount or since it has met an error (statvfs(3))."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def has_files(path: StrPath, count: int) -> bool:
    """Whether the file system under `path` can have `count` more files (f_favail). True without a limit, as on
    btrfs.
    """
    numbers = os.statvfs(path)
    return numbers.f_files == 0 or numbers.f_favail >= count


def used_now(path: StrPath | int) -> tuple[int, int]:
    """The bytes and the files that the whole file system under `path` has now (statvfs(3))."""
    numbers = os.statvfs(path)
    return (numbers.f_blocks - numbers.f_bfree) * numbers.f_frsize, numbers.f_files - numbers.f_ffree


def total_bytes(path: StrPath) -> int:
    numbers = os.statvfs(path)
    return numbers.f_blocks * numbers.f_frsize


def usable_bytes(path: StrPath) -> int:
    """Bytes that unprivileged processes use or can still write: all but what is reserved, as df(1) counts."""
    numbers = os.statvfs(path)
    return (numbers.f_blocks - numbers.f_bfree + numbers.f_bavail) * numbers.f_frsize


def swap_files() -> list[str]:
    """The paths of the files in which the kernel swaps (/proc/swaps), and of swap devices."""
    with open("/proc/swaps", "rb") as file:
        found = [line.split()[0] for line in file if line.startswith(b"/")]
    return [os.fsdecode(re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), path)) for path in found]


def make_whiteout(path: StrPath) -> None:
    """Make a whiteout, overlayfs's mark of a deleted name: a character device 0:0. Not possible on an overlay
    itself.
    """
    os.mknod(path, stat.S_IFCHR, WHITEOUT_DEVICE)


def copy_tree(source: StrPath, target: StrPath) -> None:
    """Copy the folder `source` to `target`, which must be missing or an empty folder.

    Kept: owner, mode, ACL, times, all extended attributes of files and folders (trusted.* too), hard links within the
    tree, holes, symlinks, FIFOs, sockets, devices (whiteouts). Blocks are shared where the file system can (reflink).
    Lost: inode numbers, extended attributes of symlinks. Not atomic. Raises CalledProcessError with cp's message if the
    disk is full or something listed under "Kept" cannot be copied; the files copied until then remain.
    """
    programs.run("cp", *_COPYING, source, target)


def copy_tree_within(userns: int | None, source: int, target: int, limit_s: float | None = None) -> None:
    """Copy the content of a folder like `copy_tree`, between two open folders.

    With `userns`, `cp` runs as root of that user namespace, for mounts in which only its ids are valid (idmapped.py);
    then the attributes trusted.* are not copied. Raises TimeoutExpired after `limit_s`: the kernel lets `cp` wait for
    each file that has a lease.
    """
    paths = [f"/proc/self/fd/{folder}/." for folder in (source, target)]  # without the dot, cp would copy the link
    if userns is None:
        programs.run("cp", *_COPYING, *paths, pass_fds=(source, target), limit_s=limit_s)
        return
    there = [f"--user=/proc/self/fd/{userns}", "--setuid=0", "--setgid=0", "--"]
    programs.run("nsenter", *there, "cp", *_COPYING, *paths, pass_fds=(userns, source, target), limit_s=limit_s)


def remove_tree(path: StrPath) -> None:
    """Remove the file or folder `path` with its content, but nothing on other file systems. No error if missing."""
    programs.run("rm", "-rf", "--one-file-system", "--", path)


def apparent_bytes(path: StrPath, user: programs.Identity) -> int:
    """The sum of the sizes of all files at `path`, as far as `user` may read them; 0 if there is none."""
    try:
        words = programs.run("du", "-sD", "--apparent-size", "--block-size=1", "--", path, user=user)
    except subprocess.CalledProcessError as err:
        words = err.stdout
    return int(words.split(b"\t")[0]) if words else 0


def used_by_each(folder: StrPath, apart: StrPath) -> dict[str, int]:
    """The disk space of each folder in `folder`, by its name, without `apart`, a folder in it that may be missing, and
    without files that have a hard link there.
    """
    wanted = [apart, folder] if os.path.exists(apart) else [folder]  # `du` counts a file where it is found first
    try:
        words = programs.run("du", "-x0", "--max-depth=1", "--block-size=1", "--", *wanted)
    except subprocess.CalledProcessError as err:
        words = err.stdout  # a file was removed meanwhile
    lines = (os.fsdecode(line).partition("\t") for line in words.split(b"\0") if line)
    left_out = {os.fspath(folder), os.fspath(apart)}
    return {os.path.basename(path): int(size) for size, _, path in lines if path not in left_out}


def used_bytes(path: StrPath, limit_s: float | None = None) -> int:
    """Disk space of a tree by `du`, about 1 ms per 1,000 files: hard links are counted once, shared blocks in full.
    Raises TimeoutExpired after `limit_s`.
    """
    try:
        words = programs.run("du", "-sx", "--block-size=1", "--", path, limit_s=limit_s)
    except subprocess.CalledProcessError as err:
        if not err.stdout:
            raise
        words = err.stdout  # a file was removed meanwhile: du fails, but prints the sum
    return int(words.split(b"\t")[0])
