"""The order in which a store is written, by replaying it: whatever a power loss has kept of what was not synced yet,
every image that was acknowledged is there, and the next one can be added.

What the writer does to files is recorded: writes, fsync(2), names. For each prefix of that a folder is made in which
nothing is sure but what was synced: what was not is there, or is lost, or is there in part. The index, which is not
synced, is gone, or is as it was at any moment until then.
"""

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.store.content.stores import contents, get_all, new_store
from waypoint.model.errors import StoreDamaged, UnknownName
from waypoint.store.content import object_writer
from waypoint.store.content.checking import check_packs
from waypoint.store.content.compaction import compact, mend
from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.opened import Store, open_store
from waypoint.store.packs.digests import Kind, address_of

ROUNDS = int(os.environ.get("WAYPOINT_TEST_FUZZ", "0")) or 2


@dataclass
class Recorder:
    """What was done to the files below `folder`; `indexes`: the files of the index before each step; `acknowledged`:
    how many steps there were when an image was.
    """

    folder: str
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    indexes: list[dict[str, bytes]] = field(default_factory=list)
    acknowledged: list[tuple[int, str]] = field(default_factory=list)

    @contextlib.contextmanager
    def recording(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        write, fsync, rename, unlink = os.write, os.fsync, os.rename, os.unlink

        def path_of(fd: int) -> str:
            return os.readlink(f"/proc/self/fd/{fd}")

        def note(kind: str, path: str, *more: Any) -> None:
            if path.startswith(self.folder) and "index.db" not in path and "/locks/" not in path:
                self.steps.append((kind, path.removeprefix(self.folder), *more))
                self.indexes.append({one.name: one.read_bytes() for one in Path(self.folder).glob("index.db*")})

        def written(fd: int, content: Any) -> int:
            count = write(fd, content)
            note("write", path_of(fd), bytes(content[:count]))
            return count

        def synced(fd: int) -> None:
            fsync(fd)
            note("sync", path_of(fd))

        def renamed(source: str, target: str) -> None:
            rename(source, target)
            note("rename", source, target.removeprefix(self.folder))

        def removed(path: str, **more: Any) -> None:
            unlink(path, **more)
            note("unlink", path)

        with monkeypatch.context() as patch:
            for function in (written, synced, renamed, removed):
                name = {written: "write", synced: "fsync", renamed: "rename", removed: "unlink"}[function]
                patch.setattr(os, name, function)
            yield


@dataclass
class Disk:
    """What is on a disk: content and names; and of both, what is so whatever happens."""

    content: dict[str, bytes] = field(default_factory=dict)
    sure: dict[str, bytes] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    sure_names: dict[str, str] = field(default_factory=dict)

    def do(self, kind: str, path: str, *more: Any) -> None:
        """A file is known by the name under which it was written first."""
        if kind == "write":
            self.names.setdefault(path, path)
            self.content[path] = self.content.get(path, b"") + more[0]
        elif kind == "rename":
            self.names[more[0]] = self.names.pop(path)
        elif kind == "unlink":
            self.names.pop(path, None)
        elif path in self.names:
            self.sure[self.names[path]] = self.content[self.names[path]]
        else:
            inside = {name: file for name, file in self.names.items() if _is_in(name, path)}
            gone = {name for name in self.sure_names if _is_in(name, path)} - inside.keys()
            self.sure_names = {name: file for name, file in self.sure_names.items() if name not in gone} | inside

    def put(self, folder: Path, keeps: Callable[[], float]) -> None:
        """Make a folder as a power loss may leave it. `keeps`: the share of what is not sure that is there."""
        names = {name: file for name, file in self.sure_names.items() if name in self.names or keeps() <= 0.5}
        names |= {name: file for name, file in self.names.items() if keeps() > 0.5}
        for name, file in names.items():
            sure, written = self.sure.get(file, b""), self.content[file]
            end = len(sure) + int(keeps() * (len(written) - len(sure)))
            (folder / name.lstrip("/")).write_bytes(written[:end])


def _is_in(name: str, folder: str) -> bool:
    return os.path.dirname(name).rstrip("/") == folder


def ingest(store: Store, seed: int) -> str:
    with store.writing("ingest") as adding:
        digests = [adding.put(Kind.DATA, one) for one in contents(seed, 12, 3000)]
        adding.commit()
        return store.images.add(ImageFile(b"".join(digests), b""))


def digests_of(store: Store, image: str) -> list[bytes]:
    manifest = store.images.read(image).manifest
    return [manifest[place : place + 32] for place in range(0, len(manifest), 32)]


def lost_power(
    disk: Disk, config: bytes, folder: Path, keeps: Callable[[], float], index: dict[str, bytes] | None = None
) -> Store:
    """A store as a power loss has left it, opened. `index`: what is left of the files of its index."""
    for name in ("packs", "images", "tmp", "locks"):
        (folder / name).mkdir(parents=True)
    disk.put(folder, keeps)
    (folder / "config.json").write_bytes(config)
    for name, content in (index or {}).items():
        if not name.endswith("-shm"):  # which SQLite makes anew
            (folder / name).write_bytes(content)
    return open_store(str(folder))


def test_every_prefix_of_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_writer, "PACK_BYTES", 8_000)
    recorder = Recorder(str(tmp_path / "store"))
    with contextlib.closing(new_store(tmp_path / "store")) as store, recorder.recording(monkeypatch):
        for seed in (1, 2):
            image = ingest(store, seed)
            recorder.acknowledged.append((len(recorder.steps), image))
    config = (tmp_path / "store/config.json").read_bytes()
    assert {kind for kind, *_ in recorder.steps} >= {"write", "sync", "rename"}
    assert len(recorder.steps) > 20
    pick = random.Random(1)
    ways: list[Callable[[], float]] = [lambda: 0.0, lambda: 1.0, *[pick.random] * ROUNDS]
    disk, number = Disk(), 0
    for done in range(len(recorder.steps) + 1):
        for keeps in ways:
            number += 1
            index = pick.choice([None, *recorder.indexes[: done + 1]])
            with contextlib.closing(lost_power(disk, config, tmp_path / f"lost-{number}", keeps, index)) as left:
                for at, image in recorder.acknowledged:
                    if at <= done:
                        get_all(left, digests_of(left, image))
                for image in left.images.list():  # what is there without having been acknowledged is whole, too
                    get_all(left, digests_of(left, image))
                assert list(check_packs(left, read_data=True)) == []
                again = ingest(left, 2)
                assert again == recorder.acknowledged[1][1]
                get_all(left, digests_of(left, again))
        if done < len(recorder.steps):
            disk.do(*recorder.steps[done])


def test_every_prefix_of_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the image that stays nothing is lost, whatever is lost of the packs that replace others."""
    monkeypatch.setattr(object_writer, "PACK_BYTES", 8_000)
    recorder, disk = Recorder(str(tmp_path / "store")), Disk()
    with contextlib.closing(new_store(tmp_path / "store")) as store, recorder.recording(monkeypatch):
        gone = ingest(store, 1)
        with store.writing("ingest") as adding:  # an image that needs a few objects of that one, and some more
            digests = [*digests_of(store, gone)[::5], *(adding.put(Kind.DATA, one) for one in contents(2, 6, 3000))]
            adding.commit()
            stays = store.images.add(ImageFile(b"".join(digests), b""))
        begun = len(recorder.steps)
        with store.writing("remove"):
            store.images.remove(gone)
        compact(store, {address_of(one, store.keys.hash) for one in digests})
    for step in recorder.steps[:begun]:
        disk.do(*step)
    config = (tmp_path / "store/config.json").read_bytes()
    assert {kind for kind, *_ in recorder.steps[begun:]} == {"write", "sync", "rename", "unlink"}
    pick, number = random.Random(1), 0
    ways: list[Callable[[], float]] = [lambda: 0.0, lambda: 1.0, *[pick.random] * ROUNDS]
    for done in range(begun, len(recorder.steps) + 1):
        indexes = recorder.indexes[begun : done + 1]
        for keeps in ways:
            number += 1
            index = pick.choice([None, *indexes, indexes[-1]])
            with contextlib.closing(lost_power(disk, config, tmp_path / f"lost-{number}", keeps, index)) as left:
                assert set(left.images.list()) in ({stays}, {stays, gone})
                get_all(left, digests)
                if gone in left.images.list():
                    get_all(left, digests_of(left, gone))
                assert list(check_packs(left, read_data=True)) == []
                compact(left, {address_of(one, left.keys.hash) for one in digests})
                get_all(left, digests)
                assert sorted(path.stem for path in Path(left.folder.packs).iterdir()) == sorted(left.index().packs())
        if done < len(recorder.steps):
            disk.do(*recorder.steps[done])


def test_every_prefix_of_what_is_put_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is acknowledged, the damaged copy is read by no index, also if its pack was removed and comes back."""
    monkeypatch.setattr(object_writer, "PACK_BYTES", 8_000)
    recorder, disk = Recorder(str(tmp_path / "store")), Disk()
    with contextlib.closing(new_store(tmp_path / "store")) as store, recorder.recording(monkeypatch):
        digests = digests_of(store, ingest(store, 1))
        begun = len(recorder.steps)
        found = store.index().find(address_of(digests[0], store.keys.hash))
        assert found is not None
        content = bytearray(Path(store.folder.pack(found.pack)).read_bytes())
        content[found.offset] ^= 1
        Path(store.folder.pack(found.pack)).write_bytes(content)
        with pytest.raises(StoreDamaged):
            get_all(store, digests)
        ingest(store, 1)
        acknowledged = len(recorder.steps)
        mend(store)
        assert not os.path.exists(store.folder.pack(found.pack))
    for step in recorder.steps[:begun]:
        disk.do(*step)
    damaged = disk.names[f"/packs/{found.pack}.pack"]
    disk.content[damaged] = disk.sure[damaged] = bytes(content)
    config = (tmp_path / "store/config.json").read_bytes()
    pick, number = random.Random(1), 0
    ways: list[Callable[[], float]] = [lambda: 0.0, *[pick.random] * (ROUNDS - 1)]
    for done in range(begun, len(recorder.steps) + 1):
        for keeps in ways:
            number += 1
            index = pick.choice([None, *recorder.indexes[begun : done + 1]])
            with contextlib.closing(lost_power(disk, config, tmp_path / f"lost-{number}", keeps, index)) as left:
                with contextlib.nullcontext() if done >= acknowledged else contextlib.suppress(StoreDamaged):
                    get_all(left, digests)  # or it is noted what cannot be read
                ingest(left, 1)
                get_all(left, digests)
                mend(left)
                assert list(check_packs(left, read_data=True)) == []
        if done < len(recorder.steps):
            disk.do(*recorder.steps[done])


@pytest.mark.parametrize("place", ["/tmp/", "/packs", "/images"])
def test_a_writer_that_leaves_a_sync_out_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A control: the same record without what was synced there loses what was acknowledged, and has it otherwise."""
    recorder = Recorder(str(tmp_path / "store"))
    with contextlib.closing(new_store(tmp_path / "store")) as store, recorder.recording(monkeypatch):
        image = ingest(store, 1)
    config = (tmp_path / "store/config.json").read_bytes()
    whole, less = Disk(), Disk()
    for step in recorder.steps:
        whole.do(*step)
        if step[0] != "sync" or not step[1].startswith(place):
            less.do(*step)
    with contextlib.closing(lost_power(whole, config, tmp_path / "whole", lambda: 0.0)) as left:
        get_all(left, digests_of(left, image))
    lacking = pytest.raises((StoreDamaged, UnknownName))
    with contextlib.closing(lost_power(less, config, tmp_path / "less", lambda: 0.0)) as left, lacking:
        get_all(left, digests_of(left, image))
