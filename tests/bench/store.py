"""The store by itself: putting folders into it, and bringing them back, beside git, and beside reading and compressing
the same bytes.

Folders are subvolumes of a btrfs of the bench's own, and ingested as captures are: by what differs from the snapshot
before. Needs root and git.
"""

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import zstandard
from blake3 import blake3

from tests.bench.frame import (
    Figure,
    Sizes,
    at_most,
    seconds_of,
    share_of_floor_at_least,
    times_floor_at_most,
)
from tests.upper.grounds import MIB, temporary_btrfs
from waypoint.linux.snapshots import btrfs
from waypoint.linux.snapshots.btrfs_send import differences
from waypoint.linux.storage.descriptors import open_folder
from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.object_writer import Added
from waypoint.store.content.opened import Store, make_store
from waypoint.store.trees.bringing import Bringing
from waypoint.store.trees.gathering import gather
from waypoint.store.trees.updating import update

CHANGED, CHANGED_BYTES = 10, 2000
IN_ONE_FOLDER = 100


class Tree:
    """A subvolume with files, its snapshots, and the root of the last one in the store."""

    def __init__(self, ground: Path, name: str, store: Store) -> None:
        self.live = ground / name
        self._store = store
        self._number = 0
        self._before: Path | None = None
        self.root = b""
        self.added = Added(0, 0, 0)
        btrfs.create_subvolume(str(self.live))

    def fill(self, count: int) -> None:
        for number in range(count):
            folder = self.live / f"d{number // IN_ONE_FOLDER}"
            folder.mkdir(exist_ok=True)
            (folder / f"f{number}").write_bytes(b"%d " % number * 200)

    def change(self) -> None:
        for number in range(CHANGED):
            (self.live / f"d{number}" / f"f{number * IN_ONE_FOLDER + 7}").write_bytes(os.urandom(CHANGED_BYTES))

    def snapshot(self) -> None:
        self._number += 1
        self._now = self.live.with_name(f"{self.live.name}-{self._number}")
        btrfs.snapshot_subvolume(str(self.live), str(self._now), readonly=True)

    def ingest(self) -> float:
        """Milliseconds until the last snapshot is an image that survives a power loss."""
        start = time.perf_counter()
        with self._store.writing("bench") as writer, open_folder(self._now) as fd:
            changes = differences(str(self._before), str(self._now)) if self._before else None
            self.root = update(writer, fd, self.root, changes) if changes else gather(writer, fd)
            writer.commit()
            self._store.images.add(ImageFile(os.urandom(8), b""))
            self.added = writer.added
        taken_ms = 1000 * (time.perf_counter() - start)
        if self._before is not None:
            btrfs.destroy_subvolume(str(self._before))
        self._before = self._now
        return taken_ms

    def new_kb(self) -> float:
        """Ingest the last snapshot: by how many kB the store has grown."""
        self.ingest()
        return self.added.stored / 1000

    def after(self, act: Callable[[], object]) -> Callable[[], None]:
        """For `before` of a figure: a snapshot after `act`."""

        def prepare() -> None:
            act()
            self.snapshot()

        return prepare


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    with (
        temporary_btrfs((2048 if sizes.quick else 6144) * MIB) as ground,
        contextlib.closing(make_store(str(ground.parent / "store"))) as store,
    ):
        few, many = (1000, 5000) if sizes.quick else (10_000, 100_000)
        yield [
            *_small_files(Tree(ground, "few", store), few, ground),
            *_unchanged(Tree(ground, "many", store), many),
            *_large_file(Tree(ground, "large", store), 64 if sizes.quick else 256),
            *_NewData(ground, store, 64 if sizes.quick else 512, ground.parent).figures(),
        ]


def _small_files(tree: Tree, count: int, ground: Path) -> list[Figure]:
    tree.fill(count)
    tree.snapshot()
    tree.ingest()
    git = _Git(ground / "git", tree.live)
    changed = tree.after(tree.change)
    return [
        Figure(
            f"ingest, {CHANGED} of {count} files changed",
            "ms",
            tree.ingest,
            floor=git.commit_changed,
            floor_name="git add, commit",
            aim=at_most(60, "ms"),
            before=changed,
        ),
        Figure(
            f"new bytes of that ({CHANGED * CHANGED_BYTES // 1000} kB changed)",
            "kB",
            tree.new_kb,
            aim=at_most(2 * CHANGED * CHANGED_BYTES / 1000, "kB"),
            before=changed,
            max_runs=3,
        ),
        *_none_changed(tree, count, 10),
    ]


def _unchanged(tree: Tree, count: int) -> list[Figure]:
    tree.fill(count)
    tree.snapshot()
    tree.ingest()
    return _none_changed(tree, count, 15)


def _none_changed(tree: Tree, count: int, most_ms: float) -> list[Figure]:
    aim = at_most(most_ms, "ms")
    return [
        Figure(f"ingest, {count} files, none changed", "ms", tree.ingest, aim=aim, before=tree.snapshot),
        Figure(
            "new bytes of that",
            "kB",
            tree.new_kb,
            aim=at_most(16, "kB"),
            before=tree.snapshot,
            max_runs=3,
        ),
    ]


def _large_file(tree: Tree, size_mib: int) -> list[Figure]:
    path = tree.live / "file"
    path.write_bytes(os.urandom(size_mib * MIB))
    tree.snapshot()
    tree.ingest()

    def append() -> None:
        with path.open("ab") as file:
            file.write(b"x")

    return [
        Figure(
            f"new bytes, 1 byte more in a file of {size_mib} MiB",
            "kB",
            tree.new_kb,
            aim=at_most(2048, "kB"),
            before=tree.after(append),
            max_runs=5,
        )
    ]


class _NewData:
    """A file of data that nothing has seen before and that does not get shorter."""

    def __init__(self, ground: Path, store: Store, size_mib: int, corner: Path) -> None:
        self._ground = ground
        self._store = store
        self._size = size_mib * MIB
        self._packed = corner / "packed"
        self._folder = ground / "new"
        self._folder.mkdir()
        self._path = self._folder / "file"
        self._root = b""

    def figures(self) -> list[Figure]:
        return [
            Figure(
                f"ingest of {self._size // MIB} MiB of new, incompressible data",
                "MB/s",
                self._ingest,
                floor=self._hash_and_compress,
                floor_name="BLAKE3 beside zstd -1",
                aim=share_of_floor_at_least(0.6),
                before=self._renew,
                max_runs=5,
            ),
            Figure(
                f"bringing {self._size // MIB} MiB back",
                "ms",
                self._bring_back,
                floor=self._copy,
                floor_name="copying the file",
                aim=times_floor_at_most(1.5),
                max_runs=5,
            ),
        ]

    def _renew(self) -> None:
        self._path.write_bytes(os.urandom(self._size))

    def _ingest(self) -> float:
        start = time.perf_counter()
        with self._store.writing("bench") as writer, open_folder(self._folder) as fd:
            self._root = gather(writer, fd)
            writer.commit()
        return self._size / 1e6 / (time.perf_counter() - start)

    def _hash_and_compress(self) -> float:
        self._renew()

        def both_at_once() -> None:
            hashing = threading.Thread(target=lambda: blake3(self._path.read_bytes()))
            hashing.start()
            with self._path.open("rb") as file, self._packed.open("wb") as packed:
                zstandard.ZstdCompressor(level=1).copy_stream(file, packed)
                packed.flush()
                os.fsync(packed.fileno())
            hashing.join()

        return self._size / 1e6 / seconds_of(both_at_once)

    def _bring_back(self) -> float:
        target = self._ground / "back"
        target.mkdir()
        start = time.perf_counter()
        with self._store.reading() as reader, open_folder(target) as fd:
            Bringing(reader, self._root).to(fd)
        taken_ms = 1000 * (time.perf_counter() - start)
        shutil.rmtree(target)
        return taken_ms

    def _copy(self) -> float:
        target = self._ground / "copy"
        taken_ms = 1000 * seconds_of(lambda: shutil.copyfile(self._path, target))
        target.unlink()
        return taken_ms


class _Git:
    """A repository of git's with the same files, changed in the same way."""

    def __init__(self, folder: Path, like: Path) -> None:
        self._folder = folder
        shutil.copytree(like, folder)
        self._run("init", "-q")
        self._run("add", "-A")
        self._run("commit", "-q", "-m", "first")

    def commit_changed(self) -> float:
        for number in range(CHANGED):
            (self._folder / f"d{number}" / f"f{number * IN_ONE_FOLDER + 7}").write_bytes(os.urandom(CHANGED_BYTES))
        return 1000 * seconds_of(lambda: (self._run("add", "-A"), self._run("commit", "-q", "-m", "next")))

    def _run(self, *words: str) -> None:
        who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        subprocess.run(["git", *who, *words], cwd=self._folder, check=True, stdin=subprocess.DEVNULL)
