"""What differs between two snapshots, as btrfs finds it: without looking at what both have in common.

`btrfs send` does it with the same system call (linux/fs/btrfs/send.h; btrfs-send(8), `--no-data`).
"""

import errno
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from waypoint.linux.calls import ioctls
from waypoint.linux.storage.descriptors import open_folder

_IOC_SEND = 0x40489426
_IOC_INO_LOOKUP = 0xD0009412
_SEND_ARGS = struct.Struct("qQQQQI28x4x")  # btrfs_ioctl_send_args: fd, sources, their ids, parent, flags, version
_INO_LOOKUP = struct.Struct("QQ4080x")  # btrfs_ioctl_ino_lookup_args: tree, object, (name)
_NO_FILE_DATA = 1
_FIRST_OBJECT = 256

_MAGIC = b"btrfs-stream\0"
_VERSION = struct.Struct("<I")
_COMMAND = struct.Struct("<IHI")  # length of what follows, command, checksum
_ATTRIBUTE = struct.Struct("<HH")  # type, length
_RENAME, _END = 9, 21
_SUBVOLUME, _SNAPSHOT = 1, 2
_PATH, _PATH_TO, _PATH_LINK = 15, 16, 17
_READ_BYTES = 1 << 20


@dataclass(slots=True)
class Differences:
    """Paths below a snapshot, from its root on, without a slash at their ends; "" is the root.

    `touched`: names that are new, gone or changed, some of which are only steps on the way. `moved`: those that have
    come from elsewhere with all that is below them, or are new; nothing more is told of what is below one. `left`:
    those that something has gone from to elsewhere.
    """

    touched: set[bytes] = field(default_factory=set)
    moved: set[bytes] = field(default_factory=set)
    left: set[bytes] = field(default_factory=set)


def differences(before: str, now: str) -> Differences:
    """What is different in the snapshot at the path `now` from that at the path `before`; both are read-only.

    Raises OSError: EPERM without CAP_SYS_ADMIN, EXDEV if they are of two file systems, ENAMETOOLONG for a path that is
    longer than PATH_MAX.
    """
    with open_folder(before) as fd:
        parent = _root_of(fd, before)
    reading, writing = os.pipe()
    failure: list[OSError] = []

    def send() -> None:
        try:
            with open_folder(now) as fd:
                arguments = bytearray(_SEND_ARGS.pack(writing, 0, 0, parent, _NO_FILE_DATA, 0))
                ioctls.ioctl(fd, _IOC_SEND, arguments, name="BTRFS_IOC_SEND", path=now)
        except OSError as error:
            failure.append(error)
        finally:
            os.close(writing)

    sender = threading.Thread(target=send, name="btrfs-send")
    sender.start()
    found = Differences()
    try:
        with open(reading, "rb", buffering=_READ_BYTES) as stream:
            for command, paths in _commands(stream):
                _note(found, command, paths)
            while stream.read(_READ_BYTES):
                pass
    finally:
        sender.join()
    if failure:
        raise failure[0]
    return found


def _note(found: Differences, command: int, paths: dict[int, bytes]) -> None:
    found.touched.update(paths.values())
    if command == _RENAME:
        found.moved.add(paths[_PATH_TO])
        found.left.add(paths[_PATH])


def _commands(stream: BinaryIO) -> Iterator[tuple[int, dict[int, bytes]]]:
    """Each command that is about files, with its paths by the type of the attribute. Nothing if the stream is empty, as
    it is when the call has failed. Raises OSError EPROTO.
    """
    head = stream.read(len(_MAGIC) + _VERSION.size)
    if head and not head.startswith(_MAGIC):
        raise OSError(errno.EPROTO, "this is no stream of btrfs send")
    while len(head := stream.read(_COMMAND.size)) == _COMMAND.size:
        length, command, _ = _COMMAND.unpack(head)
        content = stream.read(length)
        if command == _END:
            return
        if command not in (_SUBVOLUME, _SNAPSHOT):
            yield command, dict(_paths(content))


def _paths(content: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + _ATTRIBUTE.size <= len(content):
        kind, length = _ATTRIBUTE.unpack_from(content, place)
        place += _ATTRIBUTE.size
        if kind in (_PATH, _PATH_TO, _PATH_LINK):
            yield kind, content[place : place + length]
        place += length


def _root_of(fd: int, path: str) -> int:
    """The number of the subvolume that is open as `fd`."""
    answer = bytearray(_INO_LOOKUP.pack(0, _FIRST_OBJECT))
    ioctls.ioctl(fd, _IOC_INO_LOOKUP, answer, name="BTRFS_IOC_INO_LOOKUP", path=path)
    return int(_INO_LOOKUP.unpack(answer)[0])
