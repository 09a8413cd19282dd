"""What a capture's own files have wrong is told of the capture, and in words."""

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.store.content.stores import new_store
from tests.store.test_names_store import SETTING
from waypoint.capture.storing import ingestion, page_cuts
from waypoint.capture.storing.ingestion import ingest
from waypoint.capture.storing.orders import Ingest, Ingested, Source, Verify
from waypoint.capture.storing.store_care import verify
from waypoint.capture.storing.store_work import carry_out
from waypoint.linux.snapshots import file_stamps
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import Failed, StoreDamaged, WaypointError
from waypoint.model.records import Capture, FilesLayer, Layers, ProcessesLayer
from waypoint.processes.criu.lists import write_messages
from waypoint.processes.criu.messages import encode
from waypoint.store.content import object_writer, write_steps
from waypoint.store.content.opened import Store
from waypoint.store.content.write_steps import WriteStep
from waypoint.store.packs.digests import Kind, address_of, digest_of
from waypoint.store.trees import cutting

ANOTHER = "go back to another capture ('waypoint log --all' lists them)"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(new_store(tmp_path / "store")) as made:
        yield made


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Of a capture with one file in its tree."""
    (tmp_path / "tree/m0/upper").mkdir(parents=True)
    (tmp_path / "tree/m0/upper/file").write_bytes(bytes(range(200)) * 5000)
    capture = Capture(
        id="c0" * 16,
        branch="main",
        parents=[],
        created=time.time(),
        tier="files",
        layers=Layers(files=FilesLayer(tree="t")),
        setting=SETTING,
        reason="checkpoint",
    )
    hot = str(tmp_path / "hot")
    return Source(capture=capture, tree=str(tmp_path / "tree"), hot=hot, images=f"{hot}/images", parents=[])


def refused(store: Store, source: Source, kind: type[WaypointError], said: str, step: str) -> None:
    with pytest.raises(kind) as caught:
        ingest(store, source)
    error = caught.value
    assert (error.tried, error.on, error.next_step) == ("put into the store", "the capture c0c0c0c0c0c0", step)
    assert said in error.said
    assert store.images.list() == []


def test_what_is_missing(store: Store, source: Source) -> None:
    gone = msgspec.structs.replace(source, tree=f"{source.tree}/gone")
    refused(store, gone, StoreDamaged, "its files are missing", ANOTHER)
    processes = msgspec.convert(
        {"overlays": [], "outside": [], "proc_readonly": [], "env": {}, "nonce": "", "size_bytes": 3, "count": 1}
        | {"programs": [], "frozen_us": 0, "criu": "4.2"},
        ProcessesLayer,
    )
    layers = msgspec.structs.replace(source.capture.layers, processes=processes)
    live = msgspec.structs.replace(source, capture=msgspec.structs.replace(source.capture, layers=layers))
    refused(store, live, StoreDamaged, "the images of its processes are missing", ANOTHER)
    os.makedirs(source.images)
    Path(source.images, "pages-1.img").write_bytes(b"..")  # as a power loss leaves it
    refused(store, live, StoreDamaged, "the images of its processes have 2 bytes, written were 3", ANOTHER)


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The images with which it was tried to put a capture, and "gathered" for each folder that was read wholly."""
    found: list[str] = []
    put, gather = ingestion._ingest, ingestion.gather

    def trying(store: Store, source: Source, told: Any) -> Ingested:
        found.append(source.earlier)
        return put(store, source, told)

    def gathering(*words: Any, **more: Any) -> bytes:
        found.append("gathered")
        return gather(*words, **more)

    monkeypatch.setattr(ingestion, "_ingest", trying)
    monkeypatch.setattr(ingestion, "gather", gathering)
    return found


def test_what_is_damaged_of_the_parent_is_put_again_and_nothing_else_is_read(
    store: Store, source: Source, tries: list[str]
) -> None:
    content = random.Random(1).randbytes(5000)
    Path(source.tree, "m0/upper/kept").write_bytes(content)
    file_stamps.note(source.tree, trusted_ns=time.time_ns() + 3_600_000_000_000)
    image = ingest(store, source).image
    source = msgspec.structs.replace(source, parents=[image], earlier=image, before=source.tree)
    child = ingest(store, source).image
    assert tries == ["", "gathered", image], "that nothing has changed is known"
    found = store.index().find(address_of(digest_of(Kind.DATA, content), store.keys.hash))
    assert found is not None
    pack = Path(store.folder.pack(found.pack))
    whole = bytearray(pack.read_bytes())
    whole[found.offset] ^= 1
    pack.write_bytes(whole)
    wrong = Verify(store=store.folder.folder, images=[image], read_data=True)
    assert sorted(verify(store, wrong).lacking) == sorted([image, child])
    tries.clear()
    again = carry_out(Ingest(store=store.folder.folder, source=source), lambda done, total: None)
    assert isinstance(again, Ingested)
    assert (again.image, tries) == (child, [image, "gathered"])
    done = verify(store, wrong)
    assert (done.lacking, done.problems, done.missing) == ({}, [], [])
    tries.clear()
    path = Path(store.folder.images, image)
    path.write_bytes(path.read_bytes()[:-1])  # what it goes on from cannot be looked at at all
    assert ingest(store, source).image == child
    path.unlink()
    assert ingest(store, source).image == child
    assert tries == [image, "", "gathered"] * 2
    tries.clear()
    source = msgspec.structs.replace(source, earlier=child)
    with pytest.raises(StoreDamaged, match="its files are missing"):
        ingest(store, msgspec.structs.replace(source, tree=f"{source.tree}/gone"))
    os.makedirs(source.images)
    Path(source.images, "pagemap-1.img").write_bytes(b"no image at all")
    with pytest.raises(StoreDamaged, match="none of CRIU's"):
        ingest(store, source)
    assert tries == [child], "what the capture itself lacks is no reason to read it twice"


def test_what_was_put_before_it_broke_off_is_not_put_again(
    store: Store, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, reached = 4 << 20, list[WriteStep]()
    Path(source.tree, "m0/upper/large").write_bytes(random.Random(1).randbytes(size))

    def fail_at_the_third(step: WriteStep) -> None:
        reached.append(step)
        if reached.count(WriteStep.INDEXED) == 3:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(object_writer, "PACK_BYTES", 20_000)
    monkeypatch.setattr(write_steps, "listener", fail_at_the_third)
    with pytest.raises(Failed):
        ingest(store, source)
    monkeypatch.setattr(write_steps, "listener", None)
    there = sum(path.stat().st_size for path in Path(store.folder.packs).iterdir())
    assert there > size // 16
    done = ingest(store, source)
    assert size < there + done.added_bytes < size + 50_000
    packs = sum(path.stat().st_size for path in Path(store.folder.packs).iterdir())
    assert packs < size + 50_000, "nothing is there twice"


def test_images_that_are_none(store: Store, source: Source) -> None:
    os.makedirs(source.images)
    no_address = encode(page_cuts._ENTRY, {"compat_nr_pages": 1, "nr_pages": 1})
    messages = [encode(page_cuts._HEAD, {"pages_id": 1}), no_address]
    with open_folder(source.images) as fd:
        write_messages(fd, "pagemap-1.img", page_cuts._PAGEMAP_MAGIC, messages)
    refused(store, source, StoreDamaged, "none of CRIU's: a run of pages has no address", ANOTHER)
    Path(source.images, "pagemap-1.img").write_bytes(b"no image at all")
    refused(store, source, StoreDamaged, "none of CRIU's: pagemap-1.img is not the image", ANOTHER)


def test_a_file_that_becomes_shorter_meanwhile(store: Store, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    read = cutting.os.pread

    def shortened(fd: int, count: int, place: int) -> bytes:
        os.truncate(f"{source.tree}/m0/upper/file", 10)
        return read(fd, count, place)

    monkeypatch.setattr(cutting.os, "pread", shortened)
    refused(store, source, Failed, "has become shorter while it was read", "try again")


def test_an_error_of_the_machine_names_the_file_that_it_is_of(
    store: Store, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.makedirs(f"{source.hot}/attached")
    monkeypatch.setattr(os, "listdir", _refuse)
    with pytest.raises(Failed) as caught:
        ingest(store, source)
    assert (caught.value.on, caught.value.said) == (f"store {store.folder.folder}", "Input/output error: the folder")


def _refuse(_path: object) -> list[str]:
    raise OSError(5, "Input/output error", "the folder")
