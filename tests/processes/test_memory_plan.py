"""Which memory of a dump a template reads, planned from images that are written here."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.processes.criu.memory_plan import MemoryPlan, make_plan
from waypoint.processes.criu.messages import Field, Message, Value, encode

MM, PAGEMAP, PSTREE = 0x57492820, 0x56084025, 0x50273030
PAGE, MIB = 4096, 1 << 20
START = 0x10_0000_0000
ANONYMOUS, PRIVATE_ANONYMOUS = 0x201, 0x22
VMA = Message(
    {
        name: Field(number, "uint64")
        for name, number in {"start": 1, "end": 2, "prot": 5, "flags": 6, "status": 7, "madv": 9}.items()
    }
)
PROCESS = Message({"pid": Field(1, "uint32"), "parent": Field(2, "uint32")})
IMAGE = Message({"exe": Field(12, "uint32"), "vmas": Field(14, VMA, repeated=True), "thp_disabled": Field(17, "bool")})
HEAD = Message({"pages_id": Field(1, "uint32")})
RUN = Message({"vaddr": Field(1, "uint64"), "flags": Field(4, "uint32"), "pages": Field(5, "uint64")})


def write(folder: Path, name: str, magic: int, *messages: bytes) -> None:
    content = b"".join(struct.pack("<I", len(one)) + one for one in messages)
    (folder / name).write_bytes(struct.pack("<II", 0x54564319, magic) + content)


def area(start: int, size: int, **other: Value) -> dict[str, Value]:
    common: dict[str, Value] = {"prot": 3, "flags": PRIVATE_ANONYMOUS, "status": ANONYMOUS}
    return {"start": start, "end": start + size, **common, **other}


def plan(folder: Path, areas: list[dict[str, Value]], runs: list[tuple[int, int, int]], **other: Value) -> MemoryPlan:
    """`runs`: address, size in bytes, and flags. The process 8, a child of 7, has the same memory and `other`."""
    for pid, differing in ((7, {}), (8, other)):
        write(folder, f"mm-{pid}.img", MM, encode(IMAGE, {"vmas": [*areas], "exe": 1} | differing))
        entries = [encode(RUN, {"vaddr": at, "flags": flags, "pages": size // PAGE}) for at, size, flags in runs]
        write(folder, f"pagemap-{pid}.img", PAGEMAP, encode(HEAD, {"pages_id": 3}), *entries)
    write(folder, "pstree.img", PSTREE, *(encode(PROCESS, {"pid": pid, "parent": pid - 1}) for pid in (7, 8)))
    fd = os.open(folder, os.O_RDONLY)
    try:
        return make_plan(fd, huge_pages=True)
    finally:
        os.close(fd)


def parts(content: bytes) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """The areas of a plan with their reads."""
    while content:
        found, content = struct.unpack("=7Q", content[:56]), content[56:]
        size = 32 * found[-1]
        yield found[:-1], list(struct.iter_unpack("=4Q", content[:size]))
        content = content[size:]


def test_entries_that_follow_each_other_are_one_read_within_each_area(tmp_path: Path) -> None:
    there = 4
    runs = [(START - PAGE, PAGE, there), (START, MIB, there), (START + MIB, MIB, there), (START + 3 * MIB, MIB, there)]
    found = plan(tmp_path, [area(START, 2 * MIB, flags=PRIVATE_ANONYMOUS | 0x4000), area(START + 3 * MIB, MIB)], runs)
    assert found.size == 3 * MIB
    assert list(parts(found.content)) == [
        ((7, START, 2 * MIB, 3, 0x4022, 1), [(3, PAGE, START, 2 * MIB)]),
        ((7, START + 3 * MIB, MIB, 3, 0x22, 1), [(3, PAGE + 2 * MIB, START + 3 * MIB, MIB)]),
    ]


@pytest.mark.parametrize(
    "other",
    [{"flags": PRIVATE_ANONYMOUS | unlike} for unlike in (0x100, 0x2000, 0x40000)]  # stack, locked, hugetlb
    + [{"status": status} for status in (0x41, 0x101, 0x203)],  # of a file, shared, stack
)
def test_only_private_memory_without_a_file_is_planned(tmp_path: Path, other: dict[str, Value]) -> None:
    runs = [(START, MIB, 4)]
    assert plan(tmp_path, [area(START, MIB, **other)], runs) == (b"", 0)
    assert plan(tmp_path, [area(START, MIB)], runs).size == MIB


def test_small_areas_and_those_with_pages_of_a_parent_are_left_to_criu(tmp_path: Path) -> None:
    areas = [area(START, 2 * MIB), area(START + 2 * MIB, MIB), area(START + 4 * MIB, MIB)]
    runs = [(START, MIB, 4), (START + MIB, MIB, 1), (START + 2 * MIB, MIB - PAGE, 4), (START + 4 * MIB, MIB, 4)]
    assert [read for _, reads in parts(plan(tmp_path, areas, runs).content) for read in reads] == [
        (3, 2 * MIB - PAGE, START + 4 * MIB, MIB)
    ]


def test_huge_pages_that_a_program_has_refused_are_not_made(tmp_path: Path) -> None:
    runs = [(START, MIB, 4)]
    assert next(parts(plan(tmp_path, [area(START, MIB)], runs).content))[0][-1] == 1
    assert next(parts(plan(tmp_path, [area(START, MIB, madv=1 << 15)], runs).content))[0][-1] == 0
    both = parts(plan(tmp_path, [area(START, MIB)], runs, thp_disabled=True, exe=2).content)
    assert {found[0]: found[-1] for found, _ in both} == {7: 1, 8: 0}


def test_memory_that_a_child_has_from_its_parent_is_planned_once(tmp_path: Path) -> None:
    runs = [(START, MIB, 4)]
    assert [found[0] for found, _ in parts(plan(tmp_path, [area(START, MIB)], runs).content)] == [7]
    both = plan(tmp_path, [area(START, MIB)], runs, exe=2)  # it executes another program
    assert sorted(found[0] for found, _ in parts(both.content)) == [7, 8]


def test_a_malformed_image_is_an_error(tmp_path: Path) -> None:
    plan(tmp_path, [area(START, MIB)], [(START, MIB, 4)])
    (tmp_path / "pagemap-7.img").write_bytes(b"nothing")
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises((ValueError, struct.error)):
        make_plan(fd, huge_pages=True)
    os.close(fd)


def test_pages_in_the_folder_of_parent_images_are_read_there(tmp_path: Path) -> None:
    (tmp_path / "parent").mkdir()
    above = [(START - PAGE, PAGE), (START, MIB), (START + MIB, MIB)]
    entries = [encode(RUN, {"vaddr": at, "flags": 4, "pages": size // PAGE}) for at, size in above]
    write(tmp_path / "parent", "pagemap-7.img", PAGEMAP, encode(HEAD, {"pages_id": 9}), *entries)
    runs = [(START, PAGE, 4), (START + PAGE, 2 * MIB - PAGE, 1)]
    found = plan(tmp_path, [area(START, 2 * MIB)], runs)
    there, elsewhere = 2 * PAGE, 9 | 1 << 32
    assert list(parts(found.content)) == [
        (
            (7, START, 2 * MIB, 3, 0x22, 1),
            [(3, 0, START, PAGE), (elsewhere, there, START + PAGE, 2 * MIB - PAGE)],
        ),
    ]
    assert plan(tmp_path, [area(START, 2 * MIB)], [*runs, (START + 2 * MIB, PAGE, 1)]).size == 2 * MIB
    assert plan(tmp_path, [area(START, 3 * MIB)], [*runs, (START + 2 * MIB, PAGE, 1)]) == (b"", 0)
