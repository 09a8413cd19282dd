"""Reading the few of CRIU's image files that Waypoint looks into.

Format of a service image (criu/include/magic.h, criu/stats.c): two magic numbers and a size, each 32 bits little
endian, then one message.
"""

import os
import struct

from waypoint.processes.criu_messages import STATS, Value, decode, replace_number
from waypoint.processes.criu_options import DumpStats

_SERVICE_MAGIC = 0x55105940
_STATS_MAGIC = 0x57093306
_HEADER = struct.Struct("<III")
_INVENTORY_HEADER = struct.Struct("<II")  # which has one magic number alone
_INVENTORY_MAGIC = 0x58313116
_ROOT_NETWORK = (3, 6)  # inventory_entry.root_ids.net_ns_id
_NOBODYS = 0x7FFFFFFF
_MAX_INVENTORY_BYTES = 1 << 16
_MAX_STATS_BYTES = 4096


def read_dump_stats(work_fd: int) -> DumpStats:
    """CRIU's own figures of the dump that had this work folder. Raises OSError without the file, ValueError if it is
    something else."""
    fd = os.open("stats-dump", os.O_RDONLY | os.O_CLOEXEC, dir_fd=work_fd)
    try:
        content = os.read(fd, _MAX_STATS_BYTES)
    finally:
        os.close(fd)
    return parse_dump_stats(content)


def give_own_network(images_fd: int) -> None:
    """Let the images of a tree that shared its network namespace with CRIU say that it had one of its own.

    CRIU in the tree's network namespace need not dump it, which takes 15 to 40 ms of the tree's standstill. But then it
    restores into its own, which the tree's user namespace does not own, and there no TCP connection can be brought
    back. Told that the dumping CRIU had another one it makes the namespace, as for every tree that has one (pstree.c,
    get_clone_mask). Raises OSError, ValueError if that is no inventory.
    """
    fd = os.open("inventory.img", os.O_RDWR | os.O_CLOEXEC, dir_fd=images_fd)
    try:
        content = os.read(fd, _MAX_INVENTORY_BYTES)
        header = _INVENTORY_HEADER.size
        if len(content) < header or _INVENTORY_HEADER.unpack_from(content) != (_INVENTORY_MAGIC, len(content) - header):
            raise ValueError("not an inventory file")
        message = replace_number(content[header:], _ROOT_NETWORK, _NOBODYS)
        os.pwrite(fd, _INVENTORY_HEADER.pack(_INVENTORY_MAGIC, len(message)) + message, 0)
        os.ftruncate(fd, header + len(message))
    finally:
        os.close(fd)


def parse_dump_stats(content: bytes) -> DumpStats:
    """Raises ValueError if `content` is not a stats-dump file."""
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

    return DumpStats(
        frozen_us=figure("frozen_time"),
        memory_dump_us=figure("memdump_time"),
        pages_scanned=figure("pages_scanned"),
        pages_skipped_parent=figure("pages_skipped_parent"),
        pages_written=figure("pages_written"),
    )
