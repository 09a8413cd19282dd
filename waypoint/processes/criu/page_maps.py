"""CRIU's images of memory: `pages-N.img` has pages, and the `pagemap-PID.img` whose head has the number N says at which
addresses they were (CRIU's images/pagemap.proto, criu/pagemap.c).

A page with the flag IN_PARENT is in the images of the folder PARENT beside the map.
"""

import heapq
from collections.abc import Iterable, Iterator

from waypoint.linux.tasks.mappings import PAGE
from waypoint.linux.tasks.write_tracking import Span
from waypoint.processes.criu.image_files import read_messages, write_messages
from waypoint.processes.criu.messages import Field, Message, decode, encode

PAGEMAP_MAGIC = 0x56084025
PARENT = "parent"
HEAD = Message({"pages_id": Field(1, "uint32")})
ENTRY = Message(
    {
        "vaddr": Field(1, "uint64"),
        "compat_nr_pages": Field(2, "uint32"),
        "in_parent": Field(3, "bool"),
        "flags": Field(4, "uint32"),
        "nr_pages": Field(5, "uint64"),
    }
)
IN_PARENT, PRESENT = 1, 4


def map_name(pid: int) -> str:
    """The map of the process that is `pid` inside the session."""
    return f"pagemap-{pid}.img"


def pages_name(number: int) -> str:
    return f"pages-{number}.img"


def write_map(images_fd: int, pid: int, number: int, spans: Iterable[Span]) -> None:
    """Write the map of a process, whose pages lie in the file `number` one after the other. Raises OSError."""
    entries = (_entry(span, PRESENT) for span in spans)
    write_messages(images_fd, map_name(pid), PAGEMAP_MAGIC, [encode(HEAD, {"pages_id": number}), *entries])


def add_parent(images_fd: int, pid: int, spans: Iterable[Span]) -> None:
    """Add to the map of a process that the pages `spans`, in their order, are in the parent images, except for those
    that the map has already. Raises OSError; ValueError if the map is malformed.
    """
    name = map_name(pid)
    head, *entries = read_messages(images_fd, name, PAGEMAP_MAGIC)
    present = [(span_of(entry), entry) for entry in entries]
    absent = ((span, _entry(span, IN_PARENT)) for span in without(spans, [span for span, _ in present]))
    merged = heapq.merge(present, absent, key=lambda one: one[0].start)
    write_messages(images_fd, name, PAGEMAP_MAGIC, [head, *(entry for _, entry in merged)])


def span_of(entry: bytes) -> Span:
    """Raises ValueError."""
    values = decode(ENTRY, entry)
    start, count = values.get("vaddr"), values.get("nr_pages", values.get("compat_nr_pages", 0))
    if not isinstance(start, int) or not isinstance(count, int):
        raise ValueError("a run of pages has no address")
    return Span(start, start + count * PAGE)


def _entry(span: Span, flags: int) -> bytes:
    values = {"vaddr": span.start, "compat_nr_pages": 0, "flags": flags, "nr_pages": (span.end - span.start) // PAGE}
    return encode(ENTRY, values)


def without(spans: Iterable[Span], holes: list[Span]) -> Iterator[Span]:
    """What of the spans is in none of the holes. Both are sorted."""
    number = 0
    for start, end in spans:
        while number < len(holes) and holes[number].end <= start:
            number += 1
        place = number
        while place < len(holes) and holes[place].start < end:
            if start < holes[place].start:
                yield Span(start, holes[place].start)
            start = max(start, holes[place].end)
            place += 1
        if start < end:
            yield Span(start, end)
