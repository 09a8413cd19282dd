"""What is put into a store is read from it, by whoever opens it, and each thing is stored once."""

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.store.content.stores import SECRET, add_image, contents, get_all, new_store, opened_again, put_all
from tests.waiting import wait_until
from waypoint.linux.storage import files
from waypoint.model.errors import CannotCapture, HostLacks, StateConflict, StoreDamaged, UnknownName
from waypoint.store.content import compaction, object_writer
from waypoint.store.content.checking import check_packs
from waypoint.store.content.opened import Store, open_store
from waypoint.store.packs import pack_index
from waypoint.store.packs.codecs import MOST_BYTES, Codec
from waypoint.store.packs.digests import Kind, address_of
from waypoint.store.packs.pack_index import Found, PackIndex


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = new_store(tmp_path / "store", encrypted=request.param)
    with contextlib.closing(made):
        yield made


def packs_of(store: Store) -> list[Path]:
    return sorted(Path(store.folder.packs).iterdir())


def test_whatever_was_put_is_read_by_the_next_one(store: Store) -> None:
    many = [b"", b"x", *contents(1, 200)]
    digests = put_all(store, many)
    assert get_all(opened_again(store), digests) == many


def test_what_was_put_is_read_before_it_is_in_the_store(store: Store) -> None:
    with store.writing("test") as writer:
        digest = writer.put(Kind.DATA, b"not yet")
        assert writer.get(Kind.DATA, digest) == b"not yet"
    with pytest.raises(StoreDamaged, match="not there"):
        get_all(store, [digest])
    assert packs_of(store) == []
    assert list(Path(store.folder.tmp).iterdir()) == []


def test_what_is_told_from_nothing_is_looked_up_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    find, count = PackIndex.find, [0]

    def counted(index: PackIndex, address: bytes) -> Found | None:
        count[0] += 1
        return find(index, address)

    monkeypatch.setattr(PackIndex, "find", counted)
    put_all(store, contents(1, 20))
    assert count == [20]


def test_the_same_content_is_stored_once(store: Store) -> None:
    many = contents(1, 50)
    first = put_all(store, many + many)
    before = sum(pack.stat().st_size for pack in packs_of(store))
    assert put_all(store, many + many) == first
    assert sum(pack.stat().st_size for pack in packs_of(store)) == before


def test_the_same_bytes_of_two_kinds_are_two_objects(store: Store) -> None:
    with store.writing("test") as writer:
        data, tree = (writer.put(kind, b"same bytes") for kind in (Kind.DATA, Kind.TREE))
        writer.commit()
    assert data != tree
    with store.reading() as reader, pytest.raises(StoreDamaged):
        reader.get(Kind.TREE, data)


def test_content_that_differs_little_takes_little_and_no_chain_grows(store: Store) -> None:
    content = random.Random(7).randbytes(65536)
    (before,) = put_all(store, [content])
    for number in range(20):
        content = content[:1000] + b"version %d" % number + content[1020:]
        with store.writing("test") as writer:
            digest = writer.put(Kind.DATA, content, before)
            writer.commit()
            assert writer.added.stored < 300
        found = store.index().find(address_of(digest, store.keys.hash))
        assert found is not None
        assert found.codec == Codec.DELTA
        base = store.index().find(found.base or b"")
        assert base is not None
        assert base.codec != Codec.DELTA
        before = digest
    assert get_all(opened_again(store), [before]) == [content]


def test_a_base_of_another_kind_or_none_at_all_does_no_harm(store: Store) -> None:
    with store.writing("test") as writer:
        tree = writer.put(Kind.TREE, b"a tree " * 100)
        digests = [writer.put(Kind.DATA, b"some data %d " % n * 100, near) for n, near in enumerate((tree, bytes(32)))]
        writer.commit()
    assert get_all(store, digests) == [b"some data 0 " * 100, b"some data 1 " * 100]


@pytest.mark.parametrize("lost", ["missing", "damaged", "of another format", "of a store without its last packs"])
def test_an_index_that_is_lost_is_made_again(store: Store, lost: str) -> None:
    many = contents(1, 30)
    first, index = put_all(store, many[:15]), Path(store.folder.index)
    store.close()
    kept = index.read_bytes()
    digests = first + put_all(store, many[15:])
    store.close()
    if lost == "missing":
        index.unlink()
    elif lost == "damaged":
        index.write_bytes(random.Random(1).randbytes(5000))
    elif lost == "of another format":
        index.write_bytes(kept[:60] + (77).to_bytes(4) + kept[64:])
    else:
        index.write_bytes(kept)
    assert get_all(opened_again(store), digests) == many


def test_damage_of_the_index_that_shows_later_is_mended_then(tmp_path: Path) -> None:
    many = contents(1, 100, 40)
    with contextlib.closing(new_store(tmp_path / "sound")) as store:
        digests = put_all(store, many[:50]) + put_all(store, many[50:])
    sound = (tmp_path / "sound/index.db").read_bytes()
    pages = len(sound) // 4096
    assert pages > 6
    for page in range(1, pages):
        folder = tmp_path / str(page)
        shutil.copytree(tmp_path / "sound", folder)
        index = folder / "index.db"
        index.write_bytes(sound[: page * 4096] + b"\x5a" * 4096 + sound[(page + 1) * 4096 :])
        with contextlib.closing(open_store(str(folder))) as again:
            assert get_all(again, digests) == many
            more = put_all(again, contents(2, 20, 40))
            compaction.compact(again, [address_of(digest, store.keys.hash) for digest in (*digests[::3], *more)])
            assert get_all(again, [*digests[::3], *more]) == many[::3] + contents(2, 20, 40)
        with contextlib.closing(sqlite3.connect(index)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",), page


def test_an_index_is_made_anew_by_one_of_those_who_find_it_damaged(tmp_path: Path) -> None:
    """Else each would throw away that of the other, and perhaps one file of it alone."""
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        digests = put_all(store, contents(1, 200, 40))
    several = [open_store(str(tmp_path / "store")) for _ in range(2)]
    try:
        indexes = [one.index() for one in several]
        path = Path(store.folder.index)
        size = path.stat().st_size
        path.write_bytes(path.read_bytes()[:4096] + b"\x5a" * (size - 4096))
        for one, index in zip(several, indexes, strict=True):
            assert get_all(one, digests) == contents(1, 200, 40)
            assert index.is_current
        assert all(index.is_current for index in indexes)
        with ThreadPoolExecutor(1) as beside, files.locked(f"{store.folder.locks}/index"):
            opening = beside.submit(get_all, opened_again(several[0]), digests)
            with pytest.raises(TimeoutError):
                opening.result(0.1)
            Path(f"{path}-wal").unlink(missing_ok=True)
            path.unlink()
    finally:
        for one in several:
            one.close()
    assert opening.result() == contents(1, 200, 40)


def test_who_finds_the_index_in_use_waits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own patience may be shorter than what notes all packs again."""
    digests = put_all(store, [b"x"])
    store.close()
    waited: list[float] = []
    connect = sqlite3.connect

    def noted(path: str, timeout: float = 5.0, **more: object) -> sqlite3.Connection:
        waited.append(timeout)
        return connect(path, timeout, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", noted)
    assert get_all(opened_again(store), digests) == [b"x"]
    assert waited == [pack_index.PATIENCE_S]


def test_a_pack_that_is_gone_is_forgotten_and_told_by_who_needs_it(store: Store) -> None:
    (kept,) = put_all(store, [b"kept"])
    before = packs_of(store)
    (lost,) = put_all(store, [b"lost"])
    (pack,) = set(packs_of(store)) - set(before)
    pack.unlink()
    again = opened_again(store)
    assert get_all(again, [kept]) == [b"kept"]
    with pytest.raises(StoreDamaged, match="not there"):
        get_all(again, [lost])
    assert put_all(again, [b"lost"]) == [lost]
    assert get_all(again, [lost]) == [b"lost"]


def test_an_object_in_two_packs_outlives_one_of_them(store: Store) -> None:
    (digest,) = put_all(store, [b"twice"])
    (pack,) = packs_of(store)
    aside = pack.read_bytes()
    pack.unlink()
    put_all(store, [b"twice"])
    pack.write_bytes(aside)
    again = opened_again(store)
    assert get_all(again, [digest]) == [b"twice"]
    pack.unlink()
    assert get_all(again, [digest]) == [b"twice"]


def test_what_is_just_read_is_no_room_yet_and_goes_with_its_reader(store: Store) -> None:
    put_all(store, contents(1, 10))
    (pack,) = packs_of(store)
    size = pack.stat().st_size
    other = open_store(store.folder.folder, SECRET)
    with contextlib.closing(other), other.reading():
        assert compaction.compact(store, ()) == (0, size)
        assert compaction.compact(store, ()) == (0, size), "it is told as long as it waits"
    assert packs_of(store) == []
    put_all(store, contents(2, 10))
    (pack,) = packs_of(store)
    size = pack.stat().st_size
    with store.folder.reading():  # by one who is killed
        assert compaction.compact(store, ()) == (0, size)
    put_all(store, [])
    assert packs_of(store) == [], "the next one removes it"


def test_one_writer_at_a_time_and_the_next_one_is_told_who(store: Store) -> None:
    other = open_store(store.folder.folder, SECRET)
    with contextlib.closing(other), store.writing("a long ingestion"):
        with pytest.raises(StateConflict) as caught, other.writing("x"):
            pass
        assert f"a long ingestion, by the process {os.getpid()}" in caught.value.said
        assert caught.value.next_step == "try again when that is done"
        assert get_all(other, []) == []
    put_all(other, [b"now"])


HOLD = """
import sys, time
from waypoint.store.content.opened import open_store
from waypoint.store.packs.digests import Kind
with open_store(sys.argv[1], sys.argv[2].encode()).writing("hold") as writer:
    writer.put(Kind.DATA, b"half")
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_writer_holds_nothing_and_leaves_nothing(store: Store) -> None:
    arguments = [sys.executable, "-c", HOLD, store.folder.folder, SECRET.decode()]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StateConflict), store.writing("x"):
            pass
        holder.kill()
    wait_until(lambda: holder.poll() is not None, "it is dead")
    assert list(Path(store.folder.tmp).iterdir()) != []
    digests = put_all(store, [b"next"])
    assert list(Path(store.folder.tmp).iterdir()) == []
    assert get_all(store, digests) == [b"next"]


def test_another_secret_opens_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", encrypted=True)
    noise = os.urandom(64)  # cannot be compressed, so it is in a plain store as it is
    put_all(store, [noise])
    store.close()
    for secret, said in ((b"", "no key"), (b"another", "not the one")):
        with pytest.raises(HostLacks, match=said) as caught:
            open_store(store.folder.folder, secret)
        assert caught.value.next_step == "give the key file that it was made with"
    open_store(store.folder.folder, SECRET).close()
    stored = _content_of(tmp_path / "store")
    assert noise not in stored
    assert SECRET not in stored
    plain = new_store(tmp_path / "plain")
    put_all(plain, [noise])
    plain.close()
    assert noise in _content_of(tmp_path / "plain")


def _content_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_two_stores_have_other_addresses_and_the_same_digests(tmp_path: Path) -> None:
    stores = [new_store(tmp_path / name) for name in ("one", "two")]
    digests = [put_all(store, [b"the same"]) for store in stores]
    assert digests[0] == digests[1]
    one, two = (address_of(digests[0][0], store.keys.hash) for store in stores)
    assert one != two
    for store in stores:
        store.close()


def test_an_image_is_read_again_by_its_id(store: Store) -> None:
    ident = add_image(store, b'{"layers": {}}')
    assert add_image(store, b'{"layers": {}}') == ident
    other = add_image(store, b'{"layers": {"files": 1}}')
    again = opened_again(store)
    assert again.images.list() == sorted([ident, other])
    assert again.images.read(ident) == (b'{"layers": {}}', b"about it")
    again.images.remove(ident)
    again.images.remove(ident)
    with pytest.raises(UnknownName):
        again.images.read(ident)
    with pytest.raises(CannotCapture, match="more than 15 MiB"):  # or nobody could read it
        add_image(again, bytes(MOST_BYTES))
    assert again.images.list() == [other]


def test_nobody_else_may_read_a_store(store: Store) -> None:
    put_all(store, [b"x"])
    add_image(store, b"{}")
    for path in [Path(store.folder.folder), *Path(store.folder.folder).rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_pack_of_many_small_objects_ends_before_its_directory_gets_too_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (object_writer, compaction):
        monkeypatch.setattr(module, "PACK_OBJECTS", 8)
    digests = put_all(store, [b"%d" % number for number in range(100)])
    assert len(packs_of(store)) == 13
    live = {address_of(digest, store.keys.hash) for number, digest in enumerate(digests) if number % 4 == 0}
    compaction.compact(store, live)
    assert len(packs_of(store)) == 4
    assert max(len(list(store.index().objects(pack))) for pack in store.index().packs()) <= 8
    assert get_all(store, digests[::4]) == [b"%d" % number for number in range(0, 100, 4)]
    with store.writing("test") as writer, pytest.raises(ValueError, match="an object of"):
        writer.put(Kind.DATA, bytes(MOST_BYTES + 1))  # which nobody could read


def test_who_reads_has_all_of_it_whatever_is_removed_meanwhile(store: Store) -> None:
    many = contents(1, 60)
    digests = put_all(store, many)
    kept = {address_of(digest, store.keys.hash) for digest in digests[::20]}
    with contextlib.closing(open_store(store.folder.folder, SECRET if store.cipher else b"")) as other:
        with store.reading() as reader:
            assert compaction.compact(other, kept).waiting_bytes > 0
            assert [reader.get(Kind.DATA, digest) for digest in digests] == many
        checking = check_packs(other, read_data=True)
        assert next(checking, "") == ""
        with contextlib.closing(open_store(store.folder.folder, SECRET if store.cipher else b"")) as third:
            compaction.compact(third, ())
        assert list(checking) == []
    with store.reading() as reader:
        assert [reader.has(digest) for digest in digests] == [False] * len(digests)


def test_a_pack_that_comes_while_others_look_at_the_folder_is_not_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[threading.Thread] = []
    listdir = os.listdir

    def looked(folder: str) -> list[str]:
        found = listdir(folder)
        monkeypatch.undo()
        writers.append(threading.Thread(target=put_all, args=(writing, [b"content"])))
        writers[0].start()
        writers[0].join(0.3)  # which waits for who looks
        return found

    with contextlib.closing(open_store(store.folder.folder, SECRET if store.cipher else b"")) as writing:
        index = writing.index()
        store.index()
        monkeypatch.setattr(os, "listdir", looked)
        store.index()
        writers[0].join()
        assert len(index.packs()) == 1
