"""File handles: names of files that stay the same when the files are renamed (open_by_handle_at(2)).

The handle of a file on an overlay contains a second handle: that of the file in the layer where it comes from. The
overlay opens its own handles only with the mount option `nfs_export`, but the layer's file system opens the second one.
"""

import os
from typing import NamedTuple

from waypoint.linux.calls import libc

_KIND_OF_OVERLAYS = 0xF8  # OVL_FILEID_V1
_PADDING = 3
_HEAD_BYTES = 21  # struct ovl_fb (fs/overlayfs/overlayfs.h): version, magic, length, flags, kind, uuid[16]
_VERSION, _MAGIC, _IS_UPPER = 0, 0xFB, 4


class OverlayHandle(NamedTuple):
    """`is_upper`: the file is in the upper layer only; else it is in a lower layer, maybe with a copy in the upper.
    `kind`, `real`: the handle in that layer's file system. `origin`: the value of the extended attribute
    `trusted.overlay.origin` of a copy in the upper layer, which records the source of the copy.
    """

    is_upper: bool
    kind: int
    real: bytes
    origin: bytes


def parse_overlay(kind: int, handle: bytes) -> OverlayHandle | None:
    """The handle of an overlay's file, as in /proc/PID/fdinfo; None if it is another file system's."""
    origin = handle[_PADDING:]
    if kind != _KIND_OF_OVERLAYS or len(origin) < _HEAD_BYTES or (origin[0], origin[1]) != (_VERSION, _MAGIC):
        return None
    origin = origin[: origin[2]]
    return OverlayHandle(bool(origin[3] & _IS_UPPER), origin[4], origin[_HEAD_BYTES:], origin)


def parse_origin(origin: bytes) -> OverlayHandle | None:
    """The handle in the extended attribute `trusted.overlay.origin`; None if it is not of a known form."""
    return parse_overlay(_KIND_OF_OVERLAYS, bytes(_PADDING) + origin)


def open_handle(mount_fd: int, kind: int, handle: bytes) -> int:
    """An O_PATH descriptor of the file with this handle in the file system behind `mount_fd`.

    The file may lie outside of the folder that is mounted. Raises OSError: ESTALE, if there is no such file.
    """
    raw = len(handle).to_bytes(4, "little") + kind.to_bytes(4, "little") + handle
    return libc.call("open_by_handle_at", mount_fd, raw, os.O_PATH | os.O_CLOEXEC)
