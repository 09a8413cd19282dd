"""File handles: names of files that stay the same when the files are renamed (open_by_handle_at(2)).

The handle of a file on an overlay contains the handle of the file in the layer where it comes from. The overlay itself
opens its handles only with the mount option `nfs_export`; the layer's file system opens the one inside.
"""

import ctypes
import os
from typing import NamedTuple

from waypoint.linux.calls import libc

_KIND_OF_OVERLAYS = 0xF8  # OVL_FILEID_V1
_PADDING = 3
_HEAD_BYTES = 21  # struct ovl_fb (fs/overlayfs/overlayfs.h): version, magic, length, flags, kind, uuid[16]
_VERSION, _MAGIC, _IS_UPPER = 0, 0xFB, 4
_MOST_BYTES = 128  # MAX_HANDLE_SZ
_HEADER_BYTES = 8  # of struct file_handle: how long it is, and its kind
_EMPTY_PATH = 0x1000  # AT_EMPTY_PATH


class OverlayHandle(NamedTuple):
    """`is_upper`: the file lies in the upper layer only; else in a lower one, and maybe a copy of it in the upper.
    `kind`, `real`: the handle in that layer's file system. `origin`: what the extended attribute
    `trusted.overlay.origin` of a copy in the upper says, by which overlayfs knows where the copy is from.
    """

    is_upper: bool
    kind: int
    real: bytes
    origin: bytes


def parse_overlay(kind: int, handle: bytes) -> OverlayHandle | None:
    """The handle of an overlay's file, as /proc/PID/fdinfo tells it; None if it is another file system's."""
    origin = handle[_PADDING:]
    if kind != _KIND_OF_OVERLAYS or len(origin) < _HEAD_BYTES or (origin[0], origin[1]) != (_VERSION, _MAGIC):
        return None
    origin = origin[: origin[2]]
    return OverlayHandle(bool(origin[3] & _IS_UPPER), origin[4], origin[_HEAD_BYTES:], origin)


def handle_of(fd: int) -> tuple[int, bytes] | None:
    """The kind and the handle of an open file, for `open_handle`; None if its file system has none, or a filter of
    system calls does not let them be asked for.
    """
    raw = ctypes.create_string_buffer(_MOST_BYTES.to_bytes(4, "little"), _HEADER_BYTES + _MOST_BYTES)
    try:
        libc.call("name_to_handle_at", fd, b"", raw, ctypes.create_string_buffer(4), _EMPTY_PATH)
    except OSError:
        return None
    length, kind = (int.from_bytes(raw.raw[start : start + 4], "little") for start in (0, 4))
    return kind, raw.raw[_HEADER_BYTES : _HEADER_BYTES + length]


def open_handle(mount_fd: int, kind: int, handle: bytes) -> int:
    """An O_PATH descriptor of the file with this handle in the file system behind `mount_fd`.

    The file may lie outside of the folder that is mounted. Raises OSError: ESTALE, if there is no such file.
    """
    raw = len(handle).to_bytes(4, "little") + kind.to_bytes(4, "little") + handle
    return libc.call("open_by_handle_at", mount_fd, raw, os.O_PATH | os.O_CLOEXEC)
