"""Packs that no store has written, each with the right digest in its name: what their directories tell is refused in
words, what lies in them never becomes content that it is not, and what other packs have is read as before.

WAYPOINT_TEST_FUZZ is how many directories are tried in which something was changed: few by default.
"""

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from blake3 import blake3

from tests.fuzzing import COUNT
from tests.store.content.stores import get_all, new_store, opened_again, put_all
from waypoint.model.errors import StoreDamaged
from waypoint.store.content.checking import check_packs
from waypoint.store.content.opened import Store
from waypoint.store.packs.ciphers import PLAIN, SALT_BYTES
from waypoint.store.packs.codecs import MOST_BYTES
from waypoint.store.packs.digests import Kind, address_of
from waypoint.store.packs.pack_format import HEADER_BYTES, header, read_directory, trailer

A, B, C, D = (bytes([number]) * 32 for number in (1, 2, 3, 4))
"""Addresses."""
SOUND = [b"what was there before %d" % number * 50 for number in range(4)]


def pack(rows: object, payload: bytes = b"", *, length: int | None = None, count: int | None = None) -> bytes:
    """A pack with this directory. `length`, `count`: what its trailer tells of the directory, None: what is so."""
    directory = rows if isinstance(rows, bytes) else msgspec.msgpack.encode(rows)
    count = len(rows) if count is None and isinstance(rows, list) else count or 0
    end = trailer(len(directory) if length is None else length, count)
    content = header(PLAIN, bytes(SALT_BYTES)) + payload + directory + end
    return content + blake3(content).digest()


def row(address: bytes = A, **changes: Any) -> list[Any]:
    """Of five bytes that are stored as they are."""
    fields = {"address": address, "kind": 0, "codec": 0, "stored": 5, "length": 5, "base": None}
    return list((fields | changes).values())


FIVE = b"12345"
DIRECTORIES: dict[str, tuple[bytes, str]] = {
    "no array": (pack({"a": 1}), "its directory cannot be read"),
    "nothing": (pack(b""), "its directory cannot be read"),
    "arrays without end": (pack(b"\x91" * 100_000), "its directory cannot be read"),
    "as many rows as no memory has": (pack(b"\xdd\xff\xff\xff\xff"), "its directory cannot be read"),
    "a row too short": (pack([row()[:3]], FIVE), "its directory cannot be read"),
    "a row too long": (pack([[*row(), 1]], FIVE), "its directory cannot be read"),
    "a short address": (pack([row(b"1")], FIVE), "its directory cannot be read"),
    "a short base": (pack([row(codec=2, base=b"1")], FIVE), "its directory cannot be read"),
    "a length that is no number": (pack([row(length="5")], FIVE), "its directory cannot be read"),
    "a length that is no whole number": (pack([row(stored=5.0)], FIVE), "its directory cannot be read"),
    "a kind that is none": (pack([row(kind=9)], FIVE), "no known kind"),
    "a codec that is none": (pack([row(codec=9)], FIVE), "no known kind"),
    "more content than an object has": (pack([row(length=MOST_BYTES + 1)], FIVE), "that is too long"),
    "a length beyond numbers": (pack([row(length=(1 << 64) - 1)], FIVE), "that is too long"),
    "content of less than nothing": (pack([row(length=-1)], FIVE), "that is too long"),
    "payloads of less than nothing": (pack([row(stored=15), row(B, stored=-10)], FIVE), "that is too long"),
    "payloads that end behind their place": (pack([row(stored=6)], FIVE), "does not fit to its payloads"),
    "payloads that end before it": (pack([row(stored=4)], FIVE), "does not fit to its payloads"),
    "payloads beyond numbers": (pack([row(stored=(1 << 64) - 1)], FIVE), "does not fit to its payloads"),
    "fewer rows than it says": (pack([row()], FIVE, count=2), "does not fit to its payloads"),
    "more rows than it says": (pack([row()], FIVE, count=0), "does not fit to its payloads"),
    "a directory longer than the file": (pack([row()], FIVE, length=1 << 20), "its directory would have"),
    "a directory of four gigabytes": (pack([row()], FIVE, length=(1 << 32) - 1), "its directory would have"),
    "a directory in the header": (pack([row()], FIVE, length=90), "its directory would have"),
    "a base of what has none": (pack([row(base=B)], FIVE), "a base that is none"),
    "no base of what has one": (pack([row(codec=2)], FIVE), "a base that is none"),
}

BOMB = zstandard.ZstdCompressor().compress(bytes(64 << 20))
_DELTA: dict[str, Any] = {"codec": 2, "length": 9}
OBJECTS: dict[str, tuple[bytes, bytes, str]] = {
    "other content": (pack([row()], FIVE), A, "its content is another one"),
    "the base of itself": (pack([row(base=A, **_DELTA)], FIVE), A, "what it was made from is not there"),
    "two bases of each other": (
        pack([row(base=B, **_DELTA), row(B, base=A, **_DELTA)], FIVE * 2),
        A,
        "what it was made from is not there",
    ),
    "a base that is nowhere": (pack([row(base=D, **_DELTA)], FIVE), A, "what it was made from is not there"),
    "what is no frame": (pack([row(codec=1)], FIVE), A, "its bytes are not those that were written"),
    "a length that is another one": (pack([row(length=4)], FIVE), A, "its bytes are not those that were written"),
    "a frame that tells another length": (
        pack([row(codec=1, stored=len(BOMB))], BOMB),
        A,
        "its frame tells another length",
    ),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(new_store(tmp_path / "store")) as made:
        yield made


def place(store: Store, content: bytes) -> Path:
    """Have the store find the pack."""
    path = Path(store.folder.packs, f"{content[-32:].hex()}.pack")
    path.write_bytes(content)
    return path


def test_directories_that_no_pack_has_are_refused_in_words(store: Store) -> None:
    digests = put_all(store, SOUND)
    wrong = {str(place(store, content)): said for content, said in DIRECTORIES.values()}
    assert len(wrong) == len(DIRECTORIES)
    again = opened_again(store)
    problems = dict(problem.split(": ", 1) for problem in check_packs(again, read_data=True))
    assert problems.keys() == wrong.keys()
    for path, said in wrong.items():
        assert said in problems[path]
    assert get_all(again, digests) == SOUND
    assert put_all(again, [b"more"])
    again.close()


@pytest.mark.parametrize("case", OBJECTS)
def test_objects_that_are_not_what_they_say_are_refused_in_words(store: Store, case: str) -> None:
    content, address, said = OBJECTS[case]
    digests = put_all(store, SOUND)
    place(store, content)
    with store.reading() as reader:
        with pytest.raises(StoreDamaged) as caught:
            reader.check(address)
        assert said in caught.value.said
        assert caught.value.next_step
    assert get_all(store, digests) == SOUND


def test_an_address_that_lies_in_two_packs_is_never_read_as_something_else(store: Store) -> None:
    """A hostile pack tells of an address that a sound one has, too, and comes before that when the index is made."""
    digests = put_all(store, SOUND)
    address = address_of(digests[0], store.keys.hash)
    (sound,) = Path(store.folder.packs).iterdir()
    numbered = (pack([row(address)], b"%05d" % number) for number in range(1000))
    place(store, next(content for content in numbered if content[-32:].hex() < sound.stem))
    store.close()
    for path in Path(store.folder.folder).glob("index.db*"):
        path.unlink()
    again = opened_again(store)
    with pytest.raises(StoreDamaged, match=r"its bytes are not|its content is another one|it is a"):
        get_all(again, digests[:1])
    assert get_all(again, digests[1:]) == SOUND[1:]
    again.close()


def changed_by(pick: random.Random, rows: list[list[Any]]) -> tuple[list[list[Any]], bytes]:
    """The rows with something else in them, or in another order, and what is left before their payloads."""
    at, other = pick.randrange(len(rows)), pick.randrange(len(rows))
    match pick.randrange(6):
        case 0:
            rows[at], rows[other] = rows[other], rows[at]
        case 1:
            rows[at][0] = rows[other][0]
        case 2:
            rows[at][pick.choice((3, 4))] = pick.choice((0, 1, -1, rows[other][3], 1 << 24, 1 << 63))
        case 3:
            rows[at][pick.choice((1, 2))] = pick.randrange(6)
        case 4:
            rows[at][2], rows[at][5] = 2, rows[other][0]
        case _:
            moved = pick.randrange(1, 50)  # payloads begin and end elsewhere, and fit together all the same
            rows[at][3] -= moved
            rows[other][3] += moved
    return rows, pick.randbytes(pick.randrange(3))


def test_a_changed_directory_gives_the_content_or_an_error(store: Store) -> None:
    seed = int(os.environ.get("WAYPOINT_TEST_SEED", "1"))
    pick = random.Random(seed)
    digests = put_all(store, [*SOUND, *(os.urandom(300) for _ in range(3))])
    wanted = dict(zip(digests, get_all(store, digests), strict=True))
    (path,) = Path(store.folder.packs).iterdir()
    with path.open("rb") as file:
        content, (rows, end) = path.read_bytes(), read_directory(file.fileno(), b"")
    payloads = content[HEADER_BYTES : len(content) - end.directory - len(trailer(0, 0)) - 32]
    told = damaged = 0
    for number in range(COUNT or 60):
        path.unlink()
        changed, before = changed_by(pick, [list(msgspec.to_builtins(one, builtin_types=(bytes,))) for one in rows])
        path = place(store, pack(changed, before * pick.randrange(2) + payloads))
        told += len(list(check_packs(store, read_data=False)))
        with store.reading() as reader:
            for digest, right in wanted.items():
                try:
                    found = reader.get(Kind.DATA, digest)
                except StoreDamaged:
                    damaged += 1
                else:
                    assert found == right, f"seed {seed}, case {number}"
    assert told > 10, "directories were refused"
    assert damaged > 10, "and objects"
