"""Reading the statistics of a dump, and correcting its images after the dump.

Format of stats-dump, a "service image" (criu/include/magic.h, criu/stats.c): two magic numbers and a size, each 32 bits
little-endian, then one message. inventory.img has only one magic number. The entries of open files are in
images/{fdinfo,timerfd,sk-unix}.proto of CRIU's source. Removed folders: ghosts.py.
"""

import os
import struct
from collections.abc import Mapping

from waypoint.processes.criu.image_files import FILES, FILES_MAGIC, read_messages, write_messages
from waypoint.processes.criu.messages import STATS, Field, Message, Value, change_fields, decode, replace_number
from waypoint.processes.criu.options import DumpStats

_SERVICE_MAGIC = 0x55105940
_STATS_MAGIC = 0x57093306
_HEADER = struct.Struct("<III")
_INVENTORY_HEADER = struct.Struct("<II")
_INVENTORY_MAGIC = 0x58313116
_ROOT_NETWORK = (3, 6)  # inventory_entry.root_ids.net_ns_id
_UNUSED_NAMESPACE_ID = 0x7FFFFFFF
_MAX_INVENTORY_BYTES = 1 << 16
_MAX_STATS_BYTES = 4096

_TIMER, _SOCKET = 12, 16  # the fields of a file's entry; the others are fields in those
_SECONDS, _NANOSECONDS = 7, 8
_NAME, _NAME_FOLDER, _DELETED = 11, 14, 15
_FILE = Message(
    {
        "timer": Field(
            _TIMER,
            Message(
                {
                    "ticks": Field(5, "uint64"),
                    "vsec": Field(_SECONDS, "uint64"),
                    "vnsec": Field(_NANOSECONDS, "uint64"),
                    "isec": Field(9, "uint64"),
                    "insec": Field(10, "uint64"),
                }
            ),
        ),
        "socket": Field(_SOCKET, Message({"ino": Field(2, "uint32")})),
    }
)


def read_dump_stats(work_fd: int) -> DumpStats:
    """CRIU's statistics of the dump with the work folder `work_fd`. Raises OSError, ValueError."""
    fd = os.open("stats-dump", os.O_RDONLY | os.O_CLOEXEC, dir_fd=work_fd)
    try:
        content = os.read(fd, _MAX_STATS_BYTES)
    finally:
        os.close(fd)
    return parse_dump_stats(content)


def give_own_network(images_fd: int) -> None:
    """Change the images of a tree so that its restore creates a network namespace, although the dump contains none.

    Dumping a network namespace would freeze the tree for 15 to 40 ms more. To avoid this, the dumping CRIU runs in the
    tree's network namespace. But a restore of such images would use CRIU's own network namespace, where the kernel
    refuses to restore TCP connections, because the tree's user namespace does not own it. So this function changes the
    inventory to say that the dumping CRIU was in another network namespace than the tree (pstree.c, get_clone_mask).

    Raises OSError; ValueError if inventory.img is not an inventory.
    """
    fd = os.open("inventory.img", os.O_RDWR | os.O_CLOEXEC, dir_fd=images_fd)
    try:
        content = os.read(fd, _MAX_INVENTORY_BYTES)
        header = _INVENTORY_HEADER.size
        if len(content) < header or _INVENTORY_HEADER.unpack_from(content) != (_INVENTORY_MAGIC, len(content) - header):
            raise ValueError("not an inventory file")
        message = replace_number(content[header:], _ROOT_NETWORK, _UNUSED_NAMESPACE_ID)
        os.pwrite(fd, _INVENTORY_HEADER.pack(_INVENTORY_MAGIC, len(message)) + message, 0)
        os.ftruncate(fd, header + len(message))
    finally:
        os.close(fd)


def parse_dump_stats(content: bytes) -> DumpStats:
    if len(content) < _HEADER.size:
        raise ValueError("a stats-dump file is cut short")
    service, kind, size = _HEADER.unpack_from(content)
    if (service, kind) != (_SERVICE_MAGIC, _STATS_MAGIC) or len(content) < _HEADER.size + size:
        raise ValueError("not a stats-dump file")
    entry = decode(STATS, content[_HEADER.size : _HEADER.size + size]).get("dump")
    figures: dict[str, Value] = entry if isinstance(entry, dict) else {}

    def figure(name: str) -> int:
        value = figures.get(name, 0)
        return value if isinstance(value, int) else 0

    return DumpStats(frozen_us=figure("frozen_time"))


def correct_timers_and_sockets(images_fd: int, moved: Mapping[int, str]) -> None:
    """Correct entries of open files that CRIU would restore in another state than they had.

    * Periodic timers (timerfd) that have expired, and whose expiry nobody has read yet. The kernel restarts such a
      timer when the expiry is read; until then it reports a remaining time of 0. CRIU would set that as the timer's
      value, which switches the timer off. Here the value becomes the interval.
    * Unix sockets whose file was renamed, or linked to another name, since they were bound. CRIU would bind them to the
      first name. `moved`: the present paths of such sockets, by the sockets' inodes.

    Raises OSError; ValueError if an image is malformed.
    """
    entries = read_messages(images_fd, FILES, FILES_MAGIC)
    changed = [_corrected(entry, moved) for entry in entries]
    if changed != entries:
        write_messages(images_fd, FILES, FILES_MAGIC, changed)


def _corrected(entry: bytes, moved: Mapping[int, str]) -> bytes:
    file = decode(_FILE, entry)
    timer, sock = file.get("timer"), file.get("socket")
    if isinstance(timer, dict) and timer["ticks"] and not (timer["vsec"] or timer["vnsec"]):
        # Both are 0 if the timer is not a periodic one.
        interval = {_SECONDS: timer["isec"], _NANOSECONDS: timer["insec"]}
        return change_fields(entry, {n: part for n, part in interval.items() if isinstance(part, int)}, within=_TIMER)
    path = moved.get(inode) if isinstance(sock, dict) and isinstance(inode := sock["ino"], int) else None
    if path is not None:
        name = os.fsencode(path) + b"\0"
        return change_fields(entry, {_NAME: name, _NAME_FOLDER: None, _DELETED: None}, within=_SOCKET)
    return entry
