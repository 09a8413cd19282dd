"""CRIU's images of memory come back from the store byte by byte, however they are cut."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.content.stores import new_store
from waypoint.capture.storing import page_cuts
from waypoint.capture.storing.page_cuts import PageCuts
from waypoint.linux.storage.descriptors import open_folder
from waypoint.processes.criu.lists import write_messages
from waypoint.processes.criu.messages import encode
from waypoint.store.content.opened import Store
from waypoint.store.trees.bringing import Bringing
from waypoint.store.trees.earlier import Earlier
from waypoint.store.trees.gathering import gather

Run = tuple[int, int, int, int]
PAGE = 4096
PRESENT, LAZY, IN_PARENT = 4, 2, 1
RUNS = st.lists(
    st.tuples(
        st.integers(0, 40),  # pages between the one before and this one
        st.integers(1, 40),
        st.sampled_from([PRESENT, PRESENT | LAZY, IN_PARENT, 0]),
        st.integers(0, 3),  # what its pages have; 0: zeros
    ),
    max_size=8,
)


def dump(folder: Path, number: int, runs: Sequence[Run], shift: int, extra: bytes = b"") -> None:
    """A map, and the file with the pages that it tells as present."""
    told, address = [], 0x400000 + shift * PAGE
    for gap, count, flags, kind in runs:
        address += gap * PAGE
        pages = b"".join(bytes([kind, page % 5 * kind]) * (PAGE // 2) for page in range(count))
        told.append((address, flags, pages))
        address += count * PAGE
    write_images(folder, number, told, extra)


def write_images(folder: Path, number: int, runs: Sequence[tuple[int, int, bytes]], extra: bytes = b"") -> None:
    """`runs`: from which address on, with which flags, which pages."""
    messages, content = [encode(page_cuts._HEAD, {"pages_id": number})], b""
    for address, flags, pages in runs:
        count = len(pages) // PAGE
        values = {"vaddr": address, "compat_nr_pages": count, "flags": flags, "nr_pages": count}
        messages.append(encode(page_cuts._ENTRY, values))
        content += pages if flags & PRESENT else b""
    with open_folder(folder) as fd:
        write_messages(fd, f"pagemap-{number}.img", page_cuts._PAGEMAP_MAGIC, messages)
    (folder / f"pages-{number}.img").write_bytes(content + extra)


def put(store: Store, folder: Path, earlier: bytes) -> bytes:
    return added(store, folder, earlier)[0]


def added(store: Store, folder: Path, earlier: bytes = b"") -> tuple[bytes, int]:
    """Put the folder into the store. Returns the digest, and by how many bytes of objects the store has grown."""
    with store.writing("put") as writer, open_folder(folder) as fd:
        digest = gather(writer, fd, earlier=earlier, cut=PageCuts(fd, Earlier(writer, earlier)))
        writer.commit()
        return digest, writer.added.stored


@settings(max_examples=20, deadline=None)
@given(first=RUNS, second=RUNS, shift=st.integers(0, 20), extra=st.sampled_from([b"", b"x", bytes(PAGE)]))
def test_any_images_come_back(
    first: list[Run], second: list[Run], shift: int, extra: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where a later one differs in its map, lies elsewhere in the file, or does not go with its map."""
    top = tmp_path_factory.mktemp("images")
    with contextlib.closing(new_store(top / "store")) as store:
        digest = b""
        for number, runs in enumerate((first, [*first, *second])):
            folder, back = top / f"images-{number}", top / f"back-{number}"
            folder.mkdir()
            back.mkdir()
            dump(folder, 1, runs, shift)
            dump(folder, 2, runs[::-1], 0, extra)
            (folder / "core-1.img").write_bytes(os.urandom(100))
            digest = put(store, folder, digest)
            with store.reading() as reader, open_folder(back) as fd:
                Bringing(reader, digest).to(fd)
            assert {one.name: one.read_bytes() for one in back.iterdir()} == {
                one.name: one.read_bytes() for one in folder.iterdir()
            }


HEAP, BELOW = 0x7F0000010000, 0x400000
"""Addresses: of memory that begins where a piece does, and of what comes before it in the file."""


def made(place: Path, name: str, *runs: tuple[int, bytes]) -> Path:
    """Images of these pages, by their addresses."""
    folder = place / name
    folder.mkdir()
    write_images(folder, 1, [(address, PRESENT, pages) for address, pages in runs])
    return folder


def pieces(store: Store, digest: bytes) -> list[bytes | None]:
    with store.reading() as reader:
        return [piece for piece, _ in Earlier(reader, digest).content([b"pages-1.img"])]


def test_a_page_is_found_again_wherever_it_lies_in_the_file(tmp_path: Path) -> None:
    """In another process, whose memory begins earlier, and in the next capture, where little has changed: a page that
    differs takes a difference.
    """
    memory = os.urandom(100 * PAGE)
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        first, size = added(store, made(tmp_path, "first", (HEAP, memory)))
        assert size > len(memory)
        assert len(pieces(store, first)) == 7, "six times 16 pages, and 4"

        more = os.urandom(5 * PAGE)
        sibling, size = added(store, made(tmp_path, "sibling", (HEAP - len(more), more + memory)))
        assert pieces(store, sibling)[1:] == pieces(store, first)
        assert len(more) < size < len(more) + 1500, "what is new, and what tells of it"

        changed = bytearray(memory)
        changed[50 * PAGE + 7] ^= 1
        later, size = added(store, made(tmp_path, "later", (HEAP - len(more), more + changed)), sibling)
        others = [one != two for one, two in zip(pieces(store, later), pieces(store, sibling), strict=True)]
        assert others.count(True) == 1
        assert size < 1500


def test_pages_of_zeros_cost_nothing(tmp_path: Path) -> None:
    memory = os.urandom(3 * PAGE)
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        _, size = added(store, made(tmp_path, "without", (BELOW, memory)))
        digest, more = added(
            store, made(tmp_path, "with", (BELOW, memory), (HEAP, bytes(4096 * PAGE)), (HEAP * 2, memory))
        )
        assert pieces(store, digest).count(None) >= 4096 // 16 - 1
        assert more < 1500
        assert size > len(memory)
