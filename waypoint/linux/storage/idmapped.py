"""Idmapped mounts: a file system shown with other owners than it has on disk (mount_setattr(2), MOUNT_ATTR_IDMAP).

The map is that of a user namespace: what belongs to the id 0 on disk belongs to the host's id for that namespace's 0 in
the mount, and what that one creates there belongs to 0 on disk. An id that the namespace does not have can neither be
seen nor create anything (EOVERFLOW).
"""

import contextlib
import functools
import os
import struct

from waypoint.linux.calls import libc
from waypoint.linux.calls.paths import StrPath
from waypoint.linux.storage import mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_AT_EMPTY_PATH = 0x1000
_MOUNT_ATTR_IDMAP = 0x100000
_ATTRIBUTES = struct.Struct("=4Q")  # attr_set, attr_clr, propagation, userns_fd
_PR_GET_SECUREBITS = 27
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 4


@functools.cache
def namespace(lines: str, group_lines: str = "") -> int:
    """A descriptor, close-on-exec, of a user namespace whose map of user ids is `lines`, and that of group ids is
    `group_lines`, if they are others. It stays open and the same as long as this process lives, and nobody runs in the
    namespace.

    The first call for a map takes some milliseconds. Raises OSError, FileNotFoundError without unshare(1).
    """
    import subprocess  # these load `threading`, which would slow every fork of the launcher

    from waypoint.linux.calls import programs

    # A program, as the caller may have threads: then it can neither unshare nor run Python in a forked child.
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
    """As `mounts.clone`, with the map of the namespace `userns`.

    Raises OSError, EINVAL if the file system cannot be idmapped, or the kernel is older than 5.12 (ENOSYS).
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
    """Mount `source` at `target` as `clone` does; like a bind mount otherwise. Raises OSError."""
    with opened(source, userns) as tree:
        mounts.attach(tree, target)


@contextlib.contextmanager
def opened(folder: StrPath, userns: int | None) -> "Iterator[int]":
    """An O_PATH descriptor of `folder` for the `with` block, with the owners that `clone` shows; without a `userns`,
    with those that it has. Raises OSError.
    """
    fd = os.open(folder, os.O_PATH | os.O_CLOEXEC) if userns is None else clone(folder, userns)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> "Iterator[None]":
    """In the `with` block, what the calling thread creates belongs to `uid` and `gid` (setfsuid(2)), the host's ids. An
    overlay that the thread mounts works on its layers as this user, too. The thread's capabilities stay as they are.

    Does nothing if the caller is this user. Raises OSError without CAP_SETPCAP.
    """
    if (uid, gid) == (os.geteuid(), os.getegid()):
        yield
        return
    bits = libc.call("prctl", _PR_GET_SECUREBITS, 0, 0, 0, 0)
    # Else the capabilities over files would go with the id 0.
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
