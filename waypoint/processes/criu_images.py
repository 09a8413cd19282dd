"""Reading the few of CRIU's image files that Waypoint looks into.

Format of a service image (criu/include/magic.h, criu/stats.c): two magic numbers and a size, each 32 bits little
endian, then one message.
"""

import os
import struct

from waypoint.processes.criu_messages import STATS, Value, decode
from waypoint.processes.criu_options import DumpStats

_SERVICE_MAGIC = 0x55105940
_STATS_MAGIC = 0x57093306
_HEADER = struct.Struct("<III")
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
