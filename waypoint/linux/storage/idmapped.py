"""Idmapped mounts: a file system shown with other owners than it has on disk (mount_setattr(2), MOUNT_ATTR_IDMAP).

The map is that of a user namespace. A file that belongs to id 0 on disk belongs, in the mount, to the host's id of the
namespace's root; a file that this id creates in the mount belongs to id 0 on disk. Users whom the namespace does not
map cannot create files in the mount (EOVERFLOW).
"""

import contextlib
import functools
import os
import struct
from collections.abc import Iterator

from waypoint.linux.calls import libc
from waypoint.linux.calls.paths import StrPath
from waypoint.linux.storage import mounts

_AT_EMPTY_PATH = 0x1000
_MOUNT_ATTR_IDMAP = 0x100000
_ATTRIBUTES = struct.Struct("=4Q")  # attr_set, attr_clr, propagation, userns_fd
_PR_GET_SECUREBITS = 27
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 4


@functools.cache
def namespace(lines: str, group_lines: str = "") -> int:
    """A descriptor (close-on-exec) of a user namespace without processes. `lines`: its map of user ids, and also of
    group ids unless `group_lines` are given. The descriptor is cached and stays open until this process ends.

    The first call for a map takes some milliseconds. Raises OSError, FileNotFoundError without unshare(1).
    """
    import subprocess  # not at the top: it loads `threading`, which would slow every fork of the launcher

    from waypoint.linux.calls import programs

    # A program is run, because a process with threads can neither unshare nor run Python in a forked child.
    words = [programs.find("unshare") or "unshare", "--user", "/bin/sh", "-c", "echo; read -r _"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        assert waiting.stderr is not None
        if not waiting.stdout.readline():
            raise OSError(0, waiting.stderr.read().decode(errors="replace").strip() or "it ended", "unshare")
        for which, content in (("uid_map", lines), ("gid_map", group_lines or lines)):
            with open(f"/proc/{waiting.pid}/{which}", "w") as file:
                file.write(content)
        return os.open(f"/proc/{waiting.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def clone(source: StrPath, userns: int) -> int:
    """Clone the mount at `source` like `mounts.clone`, idmapped with the id map of the user namespace `userns`.

    Raises OSError: EINVAL if the file system cannot be idmapped.
    """
    tree = mounts.clone(source)
    try:
        attributes = _ATTRIBUTES.pack(_MOUNT_ATTR_IDMAP, 0, 0, userns)
        libc.syscall("mount_setattr", tree, b"", _AT_EMPTY_PATH, attributes, len(attributes), path=str(source))
    except BaseException:
        os.close(tree)
        raise
    return tree


def attach(source: StrPath, target: StrPath, userns: int) -> None:
    with opened(source, userns) as tree:
        mounts.attach(tree, target)


@contextlib.contextmanager
def opened(folder: StrPath, userns: int | None) -> Iterator[int]:
    """An O_PATH descriptor of `folder` for the `with` block, with the map of `userns`, if given."""
    fd = os.open(folder, os.O_PATH | os.O_CLOEXEC) if userns is None else clone(folder, userns)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """In the `with` block, the calling thread creates files as the host's `uid` and `gid` (setfsuid(2)), and an overlay
    that it mounts works on its layers as this user. The thread keeps its capabilities. Needs CAP_SETPCAP, unless the
    caller is this user.
    """
    if (uid, gid) == (os.geteuid(), os.getegid()):
        yield
        return
    bits = libc.call("prctl", _PR_GET_SECUREBITS, 0, 0, 0, 0)
    # Otherwise the thread would lose the capabilities over files with the fsuid 0.
    libc.call("prctl", _PR_SET_SECUREBITS, bits | _SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    try:
        group, user = libc.syscall("setfsgid", gid), libc.syscall("setfsuid", uid)
        try:
            yield
        finally:
            libc.syscall("setfsuid", user)
            libc.syscall("setfsgid", group)
    finally:
        libc.call("prctl", _PR_SET_SECUREBITS, bits, 0, 0, 0)
