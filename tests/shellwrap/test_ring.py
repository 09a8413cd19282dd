"""The ring buffer keeps the last bytes in order, also where it wraps around, and after its reader changes or dies."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shellwrap.ring import BLANK, DEFAULT_SIZE, HEADER_SIZE, SMALLEST_SIZE, Ring

PIECES = st.lists(st.integers(0, 9000), max_size=12)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


def numbered(position: int, count: int) -> bytes:
    """Return bytes other than BLANK, each different from the byte that it overwrites in a ring of SMALLEST_SIZE."""
    return bytes((n * 7 + n // SMALLEST_SIZE) % BLANK for n in range(position, position + count))


def feed(ring: Ring, pipe: tuple[int, int], count: int) -> None:
    os.write(pipe[1], numbered(ring.end, count))
    assert ring.read_from(pipe[0]) == count


@settings(max_examples=60, deadline=None)
@given(pieces=PIECES, appended=st.booleans())
def test_bytes_are_kept_until_they_are_overwritten(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[int], *, appended: bool
) -> None:
    ring = Ring.create(str(tmp_path_factory.mktemp("ring") / "ring"), SMALLEST_SIZE)
    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        for count in pieces:
            if appended:
                ring.append(numbered(ring.end, count))
            else:
                feed(ring, (read, write), count)
            assert ring.copy(ring.start, ring.end) == numbered(ring.start, ring.end - ring.start)
            assert ring.end - ring.start >= min(ring.end, SMALLEST_SIZE // 2)
        assert ring.end == sum(pieces)
    finally:
        os.close(read)
        os.close(write)
        ring.close()


@settings(max_examples=60, deadline=None)
@given(pieces=PIECES, uncounted=st.integers(0, 2000))
def test_bytes_that_a_killed_reader_did_not_count_are_counted_by_the_next(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[int], uncounted: int
) -> None:
    path = str(tmp_path_factory.mktemp("ring") / "ring")
    ring = Ring.create(path, SMALLEST_SIZE)
    for count in pieces:
        ring.append(numbered(ring.end, count))
    # Write what the read system call leaves if the process is killed right after it.
    with open(path, "r+b") as file:
        for offset, byte in enumerate(numbered(ring.end, uncounted)):
            file.seek(HEADER_SIZE + (ring.end + offset) % SMALLEST_SIZE)
            file.write(bytes([byte]))
    end = ring.end
    ring.close()
    following = Ring.open(path)
    assert following.end == end + uncounted
    assert following.copy(following.start, following.end) == numbered(following.start, following.end - following.start)
    following.append(numbered(following.end, 100))
    following.close()
    again = Ring.open(path)
    assert again.end == end + uncounted + 100
    again.close()


def test_a_new_ring_is_empty_and_its_disk_space_is_reserved(tmp_path: Path) -> None:
    ring = Ring.create(str(tmp_path / "ring"))
    facts = (tmp_path / "ring").stat()
    assert facts.st_size == HEADER_SIZE + DEFAULT_SIZE
    assert facts.st_blocks * 512 >= facts.st_size
    assert facts.st_mode & 0o777 == 0o600
    assert (ring.start, ring.end, ring.floor) == (0, 0, None)
    assert bytes(ring.view(0, 10)) == b""
    with pytest.raises(FileExistsError):
        Ring.create(str(tmp_path / "ring"))


@pytest.mark.parametrize("size", [0, 1000, SMALLEST_SIZE // 2, SMALLEST_SIZE * 3])
def test_a_size_that_is_no_power_of_two_or_too_small_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Ring.create(str(tmp_path / "ring"), size)
    assert not (tmp_path / "ring").exists()


@pytest.mark.parametrize("content", [b"", b"x" * 9000, b"WPRING1\0" + (1 << 14).to_bytes(8, "little")])
def test_a_file_that_is_not_a_complete_ring_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ring").write_bytes(content)
    with pytest.raises(ValueError, match="is not a terminal's ring"):
        Ring.open(str(tmp_path / "ring"))


def test_reading_stops_at_the_floor_and_continues_when_the_floor_is_raised(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    ring = Ring.create(str(tmp_path / "ring"), SMALLEST_SIZE)
    ring.floor = 0
    os.write(pipe[1], numbered(0, 3 * SMALLEST_SIZE))
    ring.read_from(pipe[0])
    assert ring.room == 0
    assert ring.read_from(pipe[0]) == 0
    held = ring.end
    assert ring.copy(0, held) == numbered(0, held)
    ring.floor = 1000
    assert ring.read_from(pipe[0]) == 1000
    assert ring.copy(1000, held + 1000) == numbered(1000, held)
    ring.floor = None
    while ring.read_from(pipe[0]):
        pass
    assert ring.end == 3 * SMALLEST_SIZE


def test_the_floor_and_the_modes_are_kept_for_the_next_reader(tmp_path: Path) -> None:
    ring = Ring.create(str(tmp_path / "ring"), SMALLEST_SIZE)
    ring.floor, ring.modes, ring.alternate_from = 77, 0b1011, 99
    ring.close()
    ring = Ring.open(str(tmp_path / "ring"))
    assert (ring.floor, ring.modes, ring.alternate_from) == (77, 0b1011, 99)


def test_a_budget_bounds_one_reading(tmp_path: Path, pipe: tuple[int, int]) -> None:
    ring = Ring.create(str(tmp_path / "ring"))
    os.write(pipe[1], bytes(60_000))
    assert ring.read_from(pipe[0], budget=1000) == 1000
    assert ring.read_from(pipe[0]) == 59_000
    assert ring.read_from(pipe[0]) == 0


def test_reading_stops_where_no_more_is_expected(tmp_path: Path, pipe: tuple[int, int]) -> None:
    ring = Ring.create(str(tmp_path / "ring"))
    seen: list[int] = []

    def one_more(count: int) -> bool:
        seen.append(count)
        return len(seen) < 2

    os.write(pipe[1], bytes(60_000))
    ring.read_max = 1000
    assert ring.read_from(pipe[0], more=one_more) == 2000
    assert seen == [1000, 1000]


def test_the_end_of_the_stream_is_reported_after_its_last_bytes(tmp_path: Path) -> None:
    ring = Ring.create(str(tmp_path / "ring"))
    master, slave = os.openpty()
    os.set_blocking(master, False)
    os.write(slave, b"last words")
    os.close(slave)
    assert ring.read_from(master) == 10
    with pytest.raises(EOFError):
        ring.read_from(master)
    os.close(master)


def test_views_are_parts_of_the_mapping_and_cannot_be_written(tmp_path: Path) -> None:
    ring = Ring.create(str(tmp_path / "ring"), SMALLEST_SIZE)
    ring.append(b"hello")
    view = ring.view(1, 100)
    assert (bytes(view), view.readonly) == (b"ello", True)
    with pytest.raises(LookupError):
        ring.view(6, 1)
    ring.append(bytes(2 * SMALLEST_SIZE))
    with pytest.raises(LookupError):
        ring.view(0, 1)
    with pytest.raises(LookupError):
        ring.copy(ring.end - 5, ring.end + 5)
    ring.close()  # while `view` still refers to the mapping
    assert len(view) == 4


def test_no_text_contains_the_byte_that_marks_unread_space() -> None:
    assert not any(BLANK in chr(code).encode() for code in range(0x110000) if not 0xD800 <= code < 0xE000)
