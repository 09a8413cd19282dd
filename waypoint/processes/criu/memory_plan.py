"""Which pages of a dump a template reads: a CRIU that has the memory of a capture, and forks CRIUs that restore it.

Formats: images/{mm,vma,pagemap}.proto and criu/include/image.h of CRIU's source; the plan is that of
criu/patches/17-templates.patch.
"""

import mmap
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.processes.criu.image_files import PSTREE, PSTREE_MAGIC, read_messages
from waypoint.processes.criu.messages import Field, Message, Value, decode
from waypoint.processes.criu.page_maps import ENTRY, HEAD, IN_PARENT, PAGEMAP_MAGIC, PARENT, PRESENT, map_name

_MM_MAGIC = 0x57492820
_NUMBERS = ("start", "end", "prot", "flags", "status", "madv")
_VMA = Message({name: Field(number, "uint64") for name, number in zip(_NUMBERS, (1, 2, 5, 6, 7, 9), strict=True)})
_MM = Message({"exe": Field(12, "uint32"), "vmas": Field(14, _VMA, repeated=True), "thp_disabled": Field(17, "bool")})
_PROCESS = Message({"pid": Field(1, "uint32"), "parent": Field(2, "uint32")})
_IN_FOLDER = 1 << 32  # the image of pages is in the folder PARENT

_REGULAR, _HEAP, _ANONYMOUS = 1 << 0, 1 << 5, 1 << 9  # kinds of areas
_MAP_PRIVATE_ANONYMOUS, _MAP_NORESERVE = 0x22, 0x4000
_UNLIKE = 0x100 | 0x2000 | 0x40000  # MAP_GROWSDOWN, MAP_LOCKED, MAP_HUGETLB
_NO_HUGE_PAGES = 1 << 15  # MADV_NOHUGEPAGE

_LEAST_AREA_BYTES = 1 << 20  # CRIU restores smaller ones
_MOST_AREAS = 255  # MAX_TEMPLATES of the patch, without an empty last one
_MOST_PAGEMAP_BYTES = 256 << 10  # decoding takes 0.2 s
_AREA, _READ = struct.Struct("=7Q"), struct.Struct("=4Q")


class MemoryPlan(NamedTuple):
    """`content`: for the template. `size`: the bytes that it reads."""

    content: bytes
    size: int


class _Run(NamedTuple):
    """Consecutive pages, at `offset` in the image of pages `image`. `offset` is negative if they are not there."""

    start: int
    end: int
    offset: int
    image: int


class _Memory(NamedTuple):
    """The memory of a process: `mm`, an entry of the kind _MM."""

    mm: dict[str, Value]

    @property
    def exe(self) -> int:
        return _number(self.mm, "exe")

    def vmas(self) -> Iterator[dict[str, Value]]:
        vmas = self.mm.get("vmas", [])
        yield from (vma for vma in vmas if isinstance(vma, dict)) if isinstance(vmas, list) else ()

    def places(self) -> set[tuple[int, int]]:
        return {(_number(vma, "start"), _number(vma, "end")) for vma in self.vmas()}


class _Area(NamedTuple):
    size: int
    plan: bytes


def make_plan(images_fd: int, *, huge_pages: bool) -> MemoryPlan:
    """Plan the big private areas of all processes: whole mappings without a file. `huge_pages`: whether the machine has
    them. Raises OSError; ValueError or struct.error if an image is malformed.
    """
    areas: list[_Area] = []
    for process in (decode(_PROCESS, one) for one in read_messages(images_fd, PSTREE, PSTREE_MAGIC)):
        areas += _areas(images_fd, _number(process, "pid"), _number(process, "parent"), huge_pages=huge_pages)
    chosen = sorted(areas, reverse=True)[:_MOST_AREAS]
    return MemoryPlan(b"".join(area.plan for area in chosen), sum(area.size for area in chosen))


def _areas(images_fd: int, pid: int, parent: int, *, huge_pages: bool) -> Iterator[_Area]:
    """The areas to be read for process `pid`. CRIU restores those that it shares with `parent` since fork(2)."""
    runs = _read_pagemap(images_fd, pid)
    if sum(run.end - run.start for run in runs) < _LEAST_AREA_BYTES:
        return
    memory, above = _read_memory(images_fd, pid), _read_memory(images_fd, parent)
    shared = above.places() if above.exe == memory.exe else set()
    starts, ends = [run.start for run in runs], [run.end for run in runs]
    for vma in memory.vmas():
        start, end, prot, flags, status, advice = (_number(vma, name) for name in _NUMBERS)
        inside = runs[bisect_right(ends, start) : bisect_left(starts, end)]
        size = sum(min(run.end, end) - max(run.start, start) for run in inside)
        is_alike = status & ~_HEAP == _REGULAR | _ANONYMOUS and not flags & _UNLIKE
        is_elsewhere = (start, end) in shared or any(run.offset < 0 for run in inside)
        if size < _LEAST_AREA_BYTES or not is_alike or is_elsewhere:
            continue
        is_huge = huge_pages and not memory.mm.get("thp_disabled") and not advice & _NO_HUGE_PAGES
        kept = _MAP_PRIVATE_ANONYMOUS | flags & _MAP_NORESERVE
        plan = [_AREA.pack(pid, start, end - start, prot, kept, is_huge, len(inside))]
        for run in inside:
            at = max(run.start, start)
            plan.append(_READ.pack(run.image, run.offset + at - run.start, at, min(run.end, end) - at))
        yield _Area(size, b"".join(plan))


def _read_memory(images_fd: int, pid: int) -> _Memory:
    """The memory of a process; nothing if it is a zombie, or the parent of the first process."""
    return _Memory(decode(_MM, b"".join(read_messages(images_fd, f"mm-{pid}.img", _MM_MAGIC))))


def _read_pagemap(images_fd: int, pid: int) -> list[_Run]:
    """The pages of a process; none if there are too many runs to be decoded."""
    runs = _runs(images_fd, map_name(pid), 0)
    if all(run.offset >= 0 for run in runs):
        return runs
    above = _runs(images_fd, f"{PARENT}/{map_name(pid)}", _IN_FOLDER)
    ends = [run.end for run in above]
    found: list[_Run] = []
    for run in runs:
        if run.offset >= 0:
            found.append(run)
            continue
        place = run.start
        for one in (above[number] for number in range(bisect_right(ends, place), len(above))):
            if one.start > place or place >= run.end:
                break
            end = min(one.end, run.end)
            found.append(_Run(place, end, one.offset + place - one.start, one.image))
            place = end
        if place < run.end:
            found.append(_Run(place, run.end, -1, 0))
    return found


def _runs(images_fd: int, name: str, folder: int) -> list[_Run]:
    """The runs of a map. CRIU writes at most a megabyte as one entry; here such entries are one run, which can be huge
    pages. `folder`: _IN_FOLDER or 0.
    """
    try:
        if os.stat(name, dir_fd=images_fd).st_size > _MOST_PAGEMAP_BYTES:
            return []
    except FileNotFoundError:  # a zombie
        return []
    head, *entries = read_messages(images_fd, name, PAGEMAP_MAGIC)
    image = _number(decode(HEAD, head), "pages_id") | folder
    runs: list[_Run] = []
    offset = 0
    for entry in entries:
        found = decode(ENTRY, entry)
        start, flags = _number(found, "vaddr"), _number(found, "flags", PRESENT)
        size = _number(found, "nr_pages", _number(found, "compat_nr_pages")) * mmap.PAGESIZE
        is_here = flags & PRESENT and not (flags & IN_PARENT or found.get("in_parent"))
        last = runs[-1] if runs else None
        if is_here and last and last.end == start and last.offset + last.end - last.start == offset:
            runs[-1] = last._replace(end=start + size)
        else:
            runs.append(_Run(start, start + size, offset if is_here else -1, image))
        offset += size if is_here else 0
    return runs


def _number(values: dict[str, Value], name: str, default: int = 0) -> int:
    number = values.get(name, default)
    assert isinstance(number, int)  # as the tables of messages say
    return number
