"""Objects: what is put can be got, is stored once, and survives the loss of the index."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.stores import add_image, contents, get_all, put_all, put_folder
from waypoint.model.errors import Failed, StateConflict, StoreDamaged, UnknownName
from waypoint.store import manifest
from waypoint.store.manifest import ImageLayer
from waypoint.store.objects import Kind
from waypoint.store.store import PACK_BYTES, Store, make_store
from waypoint.store.upkeep import gc, verify


def test_what_is_put_can_be_got_by_others(store: Store) -> None:
    some = [b"", b"x", *contents(1, 30, 5000)]
    digests = put_all(store, *some)
    assert get_all(Store(store.path), digests) == some


def test_content_is_stored_once_and_can_be_read_before_it_is_durable(store: Store) -> None:
    with store.writing() as writer:
        digest = writer.put(Kind.DATA, b"content" * 100)
        assert writer.put(Kind.DATA, b"content" * 100) == digest
        assert writer.get(Kind.DATA, digest) == b"content" * 100
        assert writer.put(Kind.TREE, b"content" * 100) != digest
        writer.commit()
    before = os.listdir(f"{store.path}/packs")
    assert put_all(store, b"content" * 100) == [digest]
    assert os.listdir(f"{store.path}/packs") == before


def test_an_object_near_another_takes_few_bytes(store: Store) -> None:
    base = contents(2, 2, 64 << 10)[1]
    with store.writing() as writer:
        first = writer.put(Kind.DATA, base)
        sizes, digests = [], []
        for number in range(3):  # each one near the one before: no chain of bases
            before = writer.new_bytes
            near = digests[-1] if digests else first
            digests.append(writer.put(Kind.DATA, base[:100] + b"%d" % number + base[101:], near))
            sizes.append(writer.new_bytes - before)
        writer.commit()
    assert max(sizes) < 200
    assert get_all(store, digests) == [base[:100] + b"%d" % number + base[101:] for number in range(3)]


@pytest.mark.parametrize("change", ["inserted first", "inserted last", "moved", "other content"])
def test_a_delta_is_found_wherever_something_has_changed(store: Store, change: str) -> None:
    base, more = os.urandom(64 << 10), os.urandom(100)
    content = {
        "inserted first": more + base,
        "inserted last": base + more,
        "moved": base[8192:] + more,
        "other content": os.urandom(64 << 10),
    }[change]
    with store.writing() as writer:
        near = writer.put(Kind.DATA, base)
        before = writer.new_bytes
        digest = writer.put(Kind.DATA, content, near)
        assert (writer.new_bytes - before < 300) == (change != "other content")
        assert writer.get(Kind.DATA, digest) == content


def test_packs_end_by_themselves(store: Store) -> None:
    digests = put_all(store, *[os.urandom(8 << 20) for _ in range(7)])
    sizes = [os.stat(store.pack(name)).st_size for name in store.pack_names()]
    assert len(sizes) == 3
    assert max(sizes) < PACK_BYTES + (16 << 20)
    assert len(get_all(store, digests)) == 7


@pytest.mark.parametrize("damage", ["missing", "garbage", "emptied", "other-format"])
def test_the_index_is_made_again_from_the_packs(store: Store, damage: str) -> None:
    some = contents(3, 20, 3000)
    digests = put_all(store, *some[:10]) + put_all(store, *some[10:])
    path = Path(store.path, "index.db")
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    match damage:
        case "missing":
            path.unlink()
        case "garbage":
            path.write_bytes(os.urandom(20_000))
        case "emptied":
            path.write_bytes(b"")
        case _:
            db = sqlite3.connect(path)
            db.execute("PRAGMA user_version = 99")
            db.close()
    assert get_all(store, digests) == some


def test_an_unknown_pack_is_added_and_a_missing_one_is_noticed(store: Store, tmp_path: Path) -> None:
    digests = put_all(store, b"one" * 100)
    (name,) = store.pack_names()
    away = tmp_path / name
    os.rename(store.pack(name), away)
    with pytest.raises(StoreDamaged, match="missing"):
        get_all(store, digests)
    os.rename(away, store.pack(name))
    assert get_all(store, digests) == [b"one" * 100]


def test_there_is_one_writer_and_readers_need_not_wait(store: Store) -> None:
    digests = put_all(store, b"content")
    with store.writing() as writer:
        writer.put(Kind.DATA, b"more")
        with pytest.raises(StateConflict) as busy, Store(store.path).writing(wait=False):
            pass
        assert busy.value.code == "store-busy"
        assert get_all(Store(store.path), digests) == [b"content"]


def test_the_lock_and_the_rest_of_a_dead_writer_are_removed(store: Store) -> None:
    script = (
        "import os, sys; from waypoint.store.store import Store, Kind\n"
        "with Store(sys.argv[1]).writing() as writer:\n"
        "    writer.put(Kind.DATA, os.urandom(2 << 20)); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, store.path], check=False).returncode == -9
    assert os.listdir(f"{store.path}/tmp") != []
    with store.writing(wait=False):
        assert os.listdir(f"{store.path}/tmp") == []


def test_a_reader_finds_what_a_gc_has_moved(store: Store) -> None:
    some = contents(4, 40, 4000)
    with store.reading() as reader:
        digests = put_all(Store(store.path), *some)
        # Nothing refers to these objects, so only moving them is tested: as a gc does it, to a new pack.
        with Store(store.path).writing() as writer:
            names = list(writer.index.packs())
            objects = [address for name in names for address, _ in writer.index.objects(name)]
            for address in reversed(objects):  # in the same order, the new pack would have the old one's name
                writer.copy(*writer.payload(address))
            first = reader.get(Kind.DATA, digests[0])
            reader.close()  # closes the old pack's descriptor
            writer.end_pack(names)
            for name in names:
                os.unlink(store.pack(name))
        assert first == some[0]
        assert [reader.get(Kind.DATA, digest) for digest in digests] == some


def test_an_image_has_the_same_id_everywhere(store: Store, tmp_path: Path) -> None:
    other = make_store(str(tmp_path / "other"))
    ids = set()
    for one, order in ((store, 1), (other, -1)):
        layers = {kind: ImageLayer(facts={"b": 1, "a": "ä"}) for kind in ("files", "shell")[::order]}
        with one.writing() as writer:
            ids.add(writer.add_image(manifest.new([], layers, {"kernel": "6"}, {})))
    assert len(ids) == 1
    assert store.read_image(ids.pop()).layers["files"].facts == {"a": "ä", "b": 1}
    with pytest.raises(UnknownName):
        store.read_image("0" * 64)


def test_a_full_disk_is_reported_and_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = put_all(store, b"content")

    def fail(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(Failed) as full:
            put_all(store, b"more")
        assert full.value.code == "disk-full"
    assert os.listdir(f"{store.path}/tmp") == []
    assert get_all(store, digests) == [b"content"]
    assert put_all(store, b"more")


def test_small_packs_are_merged(store: Store) -> None:
    folder = Path(store.path).parent / "folder"
    folder.mkdir()
    images = []
    for number in range(12):
        (folder / "file").write_text(str(number) * 1000)
        images.append(add_image(store, put_folder(store, folder)))
    assert len(store.pack_names()) == 12
    gc(store, images)
    assert len(store.pack_names()) == 1
    assert verify(store, read_data=True) == []


def test_a_gc_of_everything_gives_back_the_space_of_the_index(store: Store) -> None:
    put_all(store, *(b"%d" % number for number in range(5000)))
    gc(store, [])
    assert sum(path.stat().st_size for path in Path(store.path).glob("index.db*")) < 128 << 10
