"""A writer that is killed at any step, or finds the disk full, harms nothing; the next one goes on."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.content.stores import contents, get_all, new_store, opened_again, put_all
from tests.upper.grounds import MIB, fill, mount_new
from waypoint.linux.storage import mounts
from waypoint.model.errors import Failed
from waypoint.store.content import object_writer, write_steps
from waypoint.store.content.checking import check_packs
from waypoint.store.content.compaction import compact
from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.opened import Store, open_store
from waypoint.store.content.write_steps import WriteStep
from waypoint.store.packs.digests import Kind, address_of
from waypoint.store.reserve import Reserve

OF_EACH_PACK = (WriteStep.PACK_WRITTEN, WriteStep.PACK_IN_PLACE, WriteStep.INDEXED)
OF_ALL = (WriteStep.PACKS_DURABLE, WriteStep.IMAGE_WRITTEN, WriteStep.IMAGE_IN_PLACE, WriteStep.IMAGE_DURABLE)
INGESTING = [(step, times) for step in OF_EACH_PACK for times in (1, 2)] + [(step, 1) for step in OF_ALL]


@pytest.fixture(autouse=True)
def _small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_writer, "PACK_BYTES", 20_000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(new_store(tmp_path / "store")) as made:
        yield made


def ingest(store: Store, seed: int) -> None:
    with store.writing("ingest") as adding:
        digests = [adding.put(Kind.DATA, one) for one in contents(seed, 30)]
        adding.commit()
        store.images.add(ImageFile(b"".join(digests), b""))


def manifests(store: Store) -> list[list[bytes]]:
    """Of each image the digests that it consists of."""
    found = [store.images.read(ident).manifest for ident in store.images.list()]
    return [[manifest[place : place + 32] for place in range(0, len(manifest), 32)] for manifest in found]


def killed_at(step: WriteStep, folder: str, act: str, times: int) -> None:
    """Do it in a process that is killed when it reaches the step for the `times`th time."""
    pid = os.fork()
    if pid == 0:
        left = [times]

        def listen(reached: WriteStep) -> None:
            left[0] -= reached == step
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        write_steps.listener = listen
        with contextlib.suppress(BaseException):
            child = open_store(folder)
            if act == "ingest":
                ingest(child, 2)
            else:
                compact(child, {address_of(one, child.keys.hash) for one in manifests(child)[0]})
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"{step} was not reached {times} times"


def assert_whole(store: Store) -> None:
    for digests in manifests(store):
        get_all(store, digests)
    assert list(check_packs(store, read_data=True)) == []


@pytest.mark.parametrize(("step", "times"), INGESTING)
def test_a_killed_ingestion_harms_nothing(store: Store, step: WriteStep, times: int) -> None:
    ingest(store, 1)
    store.close()
    killed_at(step, store.folder.folder, "ingest", times)
    again = opened_again(store)
    assert_whole(again)
    assert len(manifests(again)) == (2 if step in (WriteStep.IMAGE_IN_PLACE, WriteStep.IMAGE_DURABLE) else 1)
    ingest(again, 2)
    assert sorted(manifests(again)) == sorted([put_all(again, contents(1, 30)), put_all(again, contents(2, 30))])
    assert_whole(again)
    again.close()


@pytest.mark.parametrize("step", [WriteStep.COPIED, WriteStep.RETIRED, WriteStep.REMOVED])
def test_a_killed_compaction_harms_nothing(store: Store, step: WriteStep) -> None:
    ingest(store, 1)
    kept = manifests(store)[0]
    with store.writing("more") as adding:  # packs with some of what is needed and much that is not
        for number, one in enumerate(contents(5, 60)):
            adding.put(Kind.DATA, one + b"%d" % number)
            if number % 10 == 0:
                kept.append(adding.put(Kind.DATA, b"needed %d" % number * 100))
        adding.commit()
    manifest = b"".join(kept)
    with store.writing("image"):
        for ident in store.images.list():
            store.images.remove(ident)
        store.images.add(ImageFile(manifest, b""))
    store.close()
    killed_at(step, store.folder.folder, "compact", 1)
    again = opened_again(store)
    assert_whole(again)
    live = {address_of(one, again.keys.hash) for one in kept}
    compact(again, live)
    assert_whole(again)
    there = {address for pack in again.index().packs() for address, _ in again.index().objects(pack)}
    assert live <= there
    assert len(there) < len(live) + 20
    assert sorted(path.stem for path in Path(again.folder.packs).iterdir()) == sorted(again.index().packs())
    again.close()


@pytest.mark.privileged
def test_a_full_disk_is_told_and_harms_nothing(tmp_path: Path) -> None:
    point = mount_new("ext4", tmp_path, 256 * MIB)
    reserve = Reserve(point)
    reserve.refill()
    try:
        with contextlib.closing(new_store(point / "store")) as store:
            ingest(store, 1)
            fill(point / "filler")
            with pytest.raises(Failed, match="No space left on device"):
                ingest(store, 2)
            assert_whole(store)
            assert len(manifests(store)) == 1
            with store.writing("image"):
                for ident in store.images.list():
                    store.images.remove(ident)
            assert compact(store, (), reserve.make_room).freed_bytes > 50_000  # what frees room needs none
            assert list(Path(store.folder.packs).iterdir()) == []
            (point / "filler").unlink()
            ingest(store, 2)
            assert_whole(store)
    finally:
        mounts.umount(point)
