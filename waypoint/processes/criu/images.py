"""The two CRIU image files of one message that Waypoint reads itself: `stats-dump` and `inventory.img`.

Format of stats-dump, a "service image" (criu/include/magic.h, criu/stats.c): two magic numbers and a size, each 32 bits
little-endian, then one message. inventory.img has only one magic number.
"""

import os
import struct

from waypoint.processes.criu.messages import STATS, Value, decode, replace_number
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


def read_dump_stats(work_fd: int) -> DumpStats:
    """CRIU's statistics of the dump whose work folder is `work_fd`.

    Raises OSError if there is no file stats-dump, ValueError if the file is not one.
    """
    fd = os.open("stats-dump", os.O_RDONLY | os.O_CLOEXEC, dir_fd=work_fd)
    try:
        content = os.read(fd, _MAX_STATS_BYTES)
    finally:
        os.close(fd)
    return parse_dump_stats(content)


def give_own_network(images_fd: int) -> None:
    """Change the images of a tree so that its restore creates a network namespace, although the dump contains none.

    For a dump, CRIU is run in the tree's network namespace: then CRIU does not dump that namespace, which would freeze
    the tree for 15 to 40 ms more. A restore of such images takes place in CRIU's own network namespace. The tree's user
    namespace does not own it, so the kernel refuses to restore TCP connections there. This function writes into the
    inventory that the dumping CRIU was in another network namespace than the tree. A restore then makes the tree a
    namespace of its own (pstree.c, get_clone_mask). Raises OSError; ValueError if inventory.img is not an inventory.
    """
    fd = os.open("inventory.img", os.O_RDWR | os.O_CLOEXEC, dir_fd=images_fd)
    try:
        content = os.read(fd, _MAX_INVENTORY_BYTES)
        message = replace_number(inventory_in(content), _ROOT_NETWORK, _UNUSED_NAMESPACE_ID)
        os.pwrite(fd, _INVENTORY_HEADER.pack(_INVENTORY_MAGIC, len(message)) + message, 0)
        os.ftruncate(fd, _INVENTORY_HEADER.size + len(message))
    finally:
        os.close(fd)


def inventory_in(content: bytes) -> bytes:
    """The message in the content of an inventory.img. Raises ValueError if `content` is not one."""
    header = _INVENTORY_HEADER.size
    if len(content) < header or _INVENTORY_HEADER.unpack_from(content) != (_INVENTORY_MAGIC, len(content) - header):
        raise ValueError("not an inventory file")
    return content[header:]


def parse_dump_stats(content: bytes) -> DumpStats:
    """The statistics in the content of a stats-dump file. Raises ValueError if `content` is not one."""
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
