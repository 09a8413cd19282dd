"""Storing captures and restoring them from the store. Floors: git, restic and borg on the same files (peers.py), and
reading, hashing and compressing the same bytes. Files are in subvolumes of a btrfs of the benchmark's own, the store is
beside it.
"""

import contextlib
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.frame import (
    Aim,
    Figure,
    Sizes,
    above_floor_at_most,
    at_most,
    ms_of_command,
    share_of_floor_at_least,
    times_floor_at_most,
)
from tests.bench.peers import Peer, all_peers
from tests.homes import Home, open_home
from tests.places import make_temp_root
from tests.upper.pool_homes import MIB, mount_new
from waypoint.capture.storing.orders import Ingest, Ingested, StoredPart
from waypoint.capture.storing.work import INGEST_NICE
from waypoint.capture.storing.workers import Workers
from waypoint.linux.storage import btrfs, mounts
from waypoint.linux.storage.filesystem import used_bytes
from waypoint.store import locking
from waypoint.store.encryption import Secret

CHANGED, CHANGED_BYTES, IN_A_FOLDER, FORKS = 10, 2000, 100, 12
HEAP = """
import os, random, signal, sys
size, page = int(sys.argv[1]), 4096
heap = bytearray(os.urandom(1 << 20) * (size >> 20))
for place in range(0, size, page):
    heap[place:place + 8] = place.to_bytes(8, "little")
def touch(*_):
    for number in random.sample(range(size // page), size // page // 100):
        heap[number * page + 99] ^= 255
    open("/tmp/touched", "w").close()
signal.signal(signal.SIGUSR1, touch)
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-store-", dir=make_temp_root()) as folder,
        _btrfs(Path(folder), (4 if sizes.quick else 16) << 30) as point,
        contextlib.closing(Workers()) as workers,
        open_home("bench") as home,
    ):
        yield [
            *_files(workers, point, Path(folder), sizes),
            *_while_storing(home, Tree(point, Path(folder), "busy", workers), sizes),
            *_sessions(home, sizes),
            *_again_and_again(home, sizes),
        ]


@contextlib.contextmanager
def _btrfs(folder: Path, size: int) -> Iterator[Path]:
    point = mount_new("btrfs", folder, size)
    try:
        yield point
    finally:
        mounts.umount(point)


class Tree:
    """A subvolume of files, and what the store has of it."""

    def __init__(self, point: Path, folder: Path, name: str, workers: Workers) -> None:
        self.live = point / name
        self.files = self.live / "m0/upper"
        self._store, self._workers = str(folder / f"{name}-store"), workers
        self._number, self._earlier = 0, ("", "")
        btrfs.create_subvolume(str(self.live))
        self.files.mkdir(parents=True)

    def fill(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            folder = self.files / f"d{number // IN_A_FOLDER}"
            folder.mkdir(exist_ok=True)
            (folder / f"f{number}").write_bytes(b"%d " % number * 200)

    def change_some(self) -> None:
        for number in range(CHANGED):
            (self.files / f"d{number}/f{number * IN_A_FOLDER}").write_bytes(os.urandom(CHANGED_BYTES))

    def store(self) -> Ingested:
        capture = self.snapshot()
        image, tree = self._earlier
        part = StoredPart(layer="files", name="tree", path=capture, content="session")
        order = Ingest(
            store=self._store,
            parts=[part],
            layers={"files": {}},
            parents=[image] if image else [],
            platform={},
            facts={},
            earlier=image,
            earlier_tree=tree,
        )
        found = self._workers.run(order, Ingested)
        self._earlier = found.image, capture
        return found

    def snapshot(self) -> str:
        self._number += 1
        path = f"{self.live}-{self._number}"
        btrfs.snapshot_subvolume(str(self.live), path, readonly=True)
        return path

    def forget(self) -> None:
        """Begin with an empty store."""
        shutil.rmtree(self._store, ignore_errors=True)
        self._earlier = ("", "")


def _files(workers: Workers, point: Path, folder: Path, sizes: Sizes) -> Iterator[Figure]:
    for count, aim_ms in ((1_000, 10),) if sizes.quick else ((10_000, 10), (100_000, 15)):
        tree = Tree(point, folder, f"t{count}", workers)
        tree.fill(0, count)
        if count <= 10_000:
            yield from _beside_peers(tree, count, folder)
        tree.store()
        name = f"{count:,} files"
        yield Figure(f"{name}, unchanged: store", "ms", _ms(tree), aim=at_most(aim_ms, "ms"))
        yield Figure(f"{name}, {CHANGED} changed", "ms", _ms(tree), before=tree.change_some, aim=at_most(60, "ms"))
        share = f"{name}, {CHANGED} changed: stored / changed bytes"
        changed = CHANGED * CHANGED_BYTES
        yield Figure(share, "x", _new(tree, changed), before=tree.change_some, aim=at_most(2, "x"))
    size = (16 if sizes.quick else 256) * MIB
    tree = Tree(point, folder, "large", workers)
    yield _throughput(tree, size)
    yield _sealing(tree, _encrypted(point, folder), size)
    yield Figure(
        f"1 byte appended to {size // MIB} MiB: stored",
        "KiB",
        _new(tree, 1024),
        before=lambda: _append(tree.files / "large", 1),
        aim=at_most(2048, "KiB"),
    )


def _ms(tree: Tree) -> Callable[[], float]:
    return lambda: tree.store().ms


def _new(tree: Tree, unit: int) -> Callable[[], float]:
    return lambda: tree.store().new_bytes / unit


def _append(path: Path, size: int) -> None:
    with path.open("ab") as file:
        file.write(os.urandom(size))


def _beside_peers(tree: Tree, count: int, folder: Path) -> Iterator[Figure]:
    """Peers are whole commands, whose start is part of their time; restic also encrypts. They read from the page cache,
    which ours, a snapshot, is not in.
    """
    for peer in all_peers(folder / f"peers{count}", tree.files):
        yield _beside(f"{count:,} new files", tree, peer, peer.forget, tree.forget)
        yield _beside(f"{count:,} files, {CHANGED} changed", tree, peer, tree.change_some, tree.change_some)


def _beside(name: str, tree: Tree, peer: Peer, before: Callable[[], object], ours: Callable[[], object]) -> Figure:
    def floor() -> float:
        before()
        return peer.store()

    return Figure(
        f"{name}: store" if peer.is_installed else f"{name}: store ({peer.name} is not installed)",
        "ms",
        _ms(tree),
        floor=floor if peer.is_installed else None,
        floor_name=peer.name,
        before=ours,
        aim=times_floor_at_most(1) if peer.is_installed else None,
        max_runs=5,
    )


def _throughput(tree: Tree, size: int) -> Figure:
    path = tree.files / "large"

    def renew() -> None:
        path.unlink(missing_ok=True)
        _append(path, size)

    def hash_and_compress() -> float:
        renew()
        copy = Path(tree.snapshot(), "m0/upper/large")  # as the store reads it: not from the page cache
        start = time.perf_counter()
        # As nice as the store's process: on a busy machine the others come first.
        hashing = f"from blake3 import blake3; blake3(open('{copy}', 'rb').read()).digest()"
        for words in ([sys.executable, "-c", hashing], ["sh", "-c", f"zstd -1 -q -c <{copy} | cat >/dev/null"]):
            subprocess.run(["nice", "-n", f"{INGEST_NICE}", *words], check=True)
        return size / MIB / (time.perf_counter() - start)

    return Figure(
        f"{size // MIB} MiB of random bytes: store",
        "MiB/s",
        lambda: size / MIB / (tree.store().ms / 1000),
        floor=hash_and_compress,
        floor_name="blake3, then zstd -1 | cat",
        before=renew,
        aim=share_of_floor_at_least(0.6),
        max_runs=5,
    )


def _encrypted(point: Path, folder: Path) -> Tree:
    master = locking.make_encrypted(f"{folder}/sealed-store", Secret("key-file", b"benchmark"))
    return Tree(point, folder, "sealed", Workers(master.hex))


def _sealing(plain: Tree, sealed: Tree, size: int) -> Figure:
    def rate(tree: Tree) -> float:
        (tree.files / "large").unlink(missing_ok=True)
        _append(tree.files / "large", size)
        return size / MIB / (tree.store().ms / 1000)

    return Figure(
        f"{size // MIB} MiB of random bytes: store, encrypted",
        "MiB/s",
        lambda: rate(sealed),
        floor=lambda: rate(plain),
        floor_name="not encrypted",
        aim=share_of_floor_at_least(0.9),
        max_runs=5,
    )


def _while_storing(home: Home, tree: Tree, sizes: Sizes) -> Iterator[Figure]:
    """What a session notices of the process that stores a capture. Measured on a machine with nothing else to do."""
    home.must("shell", "-d", "noticing")
    _append(tree.files / "large", (16 if sizes.quick else 256) * MIB)
    names = itertools.count()

    def pause() -> float:
        found = home.must("checkpoint", f"noticing-{next(names)}", "-b", "noticing", "--anew", "--json").json()
        return float(found["paused_ms"])

    def execute() -> float:
        return ms_of_command(home.argv("exec", "-b", "noticing", "--", "true"), home.env)

    def beside(act: Callable[[], float]) -> Callable[[], float]:
        def measure() -> float:
            with _storing(tree):
                return statistics.median(act() for _ in range(5))

        return measure

    for name, act in (("pause of a checkpoint", pause), ("exec -- true", execute)):
        yield Figure(
            f"{name} while a capture is stored",
            "ms",
            beside(act),
            floor=lambda act=act: statistics.median(act() for _ in range(5)),
            floor_name="without",
            aim=above_floor_at_most(3, "ms"),
        )


@contextlib.contextmanager
def _storing(tree: Tree) -> Iterator[None]:
    """Store new captures all the time."""
    is_over, has_begun = threading.Event(), threading.Event()

    def store() -> None:
        while not is_over.is_set():
            tree.forget()
            has_begun.set()
            tree.store()

    thread = threading.Thread(target=store)
    thread.start()
    has_begun.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _sessions(home: Home, sizes: Sizes) -> Iterator[Figure]:
    home.must("shell", "-d", "idle")
    home.must("checkpoint", "idle-cp", "-b", "idle", "--wait")
    yield _restore(home, "idle-cp", "an idle shell", at_most(150, "ms"))
    _start_heap(home, "warm", 64 * MIB)
    yield _of_forks(home, "warm-cp", 64 * MIB)
    size = (32 if sizes.quick else 1024) * MIB
    _start_heap(home, "heap", size)
    yield _restore(home, "heap-cp", f"{size // MIB} MiB of heap", times_floor_at_most(1.5), _reading_the_disk(home))
    yield _of_touched_pages(home, size)


def _start_heap(home: Home, branch: str, size: int) -> None:
    """Start a session with a process that has `size` bytes of memory, and checkpoint it."""
    home.must("shell", "-d", branch)
    home.must("exec", "-b", branch, "--", f"cat >/tmp/heap.py <<'END'\n{HEAP}END\nmkfifo /tmp/pid")
    start = f"{sys.executable} /tmp/heap.py {size} >/tmp/pid & read -r pid </tmp/pid"
    home.must("exec", "-b", branch, "--", start)
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--wait")


def _restore(home: Home, name: str, what: str, aim: Aim, floor: Callable[[], float] | None = None) -> Figure:
    def evict() -> None:
        home.cli("stop", "back", "--discard")
        home.must("evict", name)

    return Figure(
        f"{what}: restore from the store",
        "ms",
        lambda: ms_of_command(home.argv("restore", name, "--new", "back"), home.env),
        floor=floor,
        floor_name="reading the packs, O_DIRECT" if floor else "",
        before=evict,
        aim=aim,
        max_runs=10,
    )


def _reading_the_disk(home: Home) -> Callable[[], float]:
    words = f"for pack in {home.path}/store/packs/*; do dd if=$pack of=/dev/null bs=1M iflag=direct status=none; done"
    return lambda: ms_of_command(["sh", "-c", words])


def _packs(home: Home) -> int:
    return sum(pack.stat().st_size for pack in (home.path / "store/packs").iterdir())


def _of_touched_pages(home: Home, size: int) -> Figure:
    def touch() -> None:
        wait = "rm -f /tmp/touched; kill -USR1 $pid; until [ -e /tmp/touched ]; do :; done"
        home.must("exec", "-b", "heap", "--", wait)

    def store() -> float:
        before = _packs(home)
        home.must("checkpoint", "heap-cp2", "-b", "heap", "--wait", "--force", "--anew")
        return 100 * (_packs(home) - before) / size

    name = f"1 % of the pages of {size // MIB} MiB touched: stored"
    return Figure(name, "%", store, before=touch, aim=at_most(3, "%"), max_runs=3)


def _again_and_again(home: Home, sizes: Sizes) -> Iterator[Figure]:
    """An agent's habit: the same name again and again, of a program with 30 MiB of which one byte changes."""
    count = 10 if sizes.quick else 100
    home.must("shell", "-d", "again")
    program = "import os, time; d = bytearray(os.urandom(30 << 20))\nwhile True: d[0] ^= 1; time.sleep(0.001)"
    home.must("exec", "-b", "again", "--", f"python3 -c '{program}' >/dev/null 2>&1 & sleep 1")
    home.must("checkpoint", "again-cp", "-b", "again", "--wait")
    daemon = int(home.must("daemon", "status", "--json").json()["pid"])

    def take() -> None:
        for _ in range(count):
            home.must("checkpoint", "again-cp", "-b", "again", "--force", "--anew")

    def cpu() -> float:
        take()
        before = _cpu_s(daemon)
        take()
        home.must("gc")
        return 1000 * (_cpu_s(daemon) - before) / count

    def kept() -> float:
        home.must("gc")
        before = used_bytes(home.path)
        take()
        home.must("gc")
        return (used_bytes(home.path) - before) / count / 1024

    name = f"{count} checkpoints of one name, 30 MiB, 1 byte changed"
    yield Figure(f"{name}: kept after gc, each", "KiB", kept, aim=at_most(100, "KiB"), max_runs=3)
    yield Figure(f"{name}: processor, each, without CRIU", "ms", cpu, aim=at_most(150, "ms"), max_runs=3)


def _cpu_s(daemon: int) -> float:
    """The processor time of the daemon, its present children and the ended ones that it has waited for."""
    children = " ".join(path.read_text() for path in Path(f"/proc/{daemon}/task").glob("*/children"))
    ticks = 0
    for pid in [daemon, *map(int, children.split())]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _of_forks(home: Home, name: str, size: int) -> Figure:
    runs = itertools.count()

    def store() -> float:
        run = next(runs)
        branches = [f"f{run}-{number}" for number in range(FORKS)]
        home.must("fork", name, *branches)
        before = _packs(home)
        for branch in branches:
            home.must("checkpoint", f"{branch}-cp", "-b", branch, "--wait")
        for branch in branches:
            home.must("stop", branch, "--discard")
        return 1 + (_packs(home) - before) / size

    return Figure(f"{FORKS} forks of {size // MIB} MiB: stored / one", "x", store, aim=at_most(1.02, "x"), max_runs=3)
