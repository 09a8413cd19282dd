"""Captures on their way into the store and back: how long that takes, and what sessions feel of it meanwhile."""

import contextlib
import os
import signal
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.checkpoint import CROWD, MB, SLEEP, USER, take
from tests.bench.frame import (
    Figure,
    Sizes,
    above_floor_at_most,
    at_most,
    can_measure,
    seconds_of,
    times_floor_at_most,
)
from tests.bench.inside import Spinner
from tests.homes import Home, open_home
from tests.places import make_temp_root
from tests.waiting import wait_until
from waypoint.client.sdk import Client, Session
from waypoint.linux.tasks import procfs

MIB = 1 << 20
AT_ONCE = 10
"""How often something is done while the store takes in one capture."""
PUT_S = 300.0
"""For the store to take in 4 GiB, by a program that has what others leave of the processors."""
_HEAP = """import mmap, os, random, sys
kept = bytearray(os.urandom({size}))
places = range(0, len(kept), mmap.PAGESIZE)
while True:
    print(len(kept), flush=True)
    sys.stdin.readline()
    for place in random.sample(places, len(places) // 100):
        kept[place] ^= 1"""
"""With each line that it reads, it writes to another hundredth of its pages."""


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    if not can_measure("durable", "criu"):
        yield []
        return
    within = None if sizes.quick else make_temp_root()
    never, at_once = {"durable_after_s": None}, {"durable_after_s": 0.0}
    with (
        open_home("bench", within, settings=never) as asked,
        open_home("bench", within, settings=at_once) as by_itself,
    ):
        bench = _Bench(asked)
        meanwhile = _Meanwhile(by_itself, *((48 * MIB, 10) if sizes.quick else (4096 * MIB, 3)))
        yield [
            *bench.checkpoints(),
            *bench.restores(),
            *bench.heap((64 if sizes.quick else 1024) * MIB),
            bench.crowd(),
            *meanwhile.figures(),
        ]


class _Bench:
    """A home in which only what is asked for is put into the store."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._client = Client(home.path)
        self._idle = self._start("idle")
        self._idle.checkpoint("idle-point", tier="live", wait=True)

    def _start(self, branch: str) -> Session:
        session = self._client.start(branch, user=USER, env={"TERM": "xterm"})
        session.exec(SLEEP)
        return session

    def checkpoints(self) -> list[Figure]:
        """Of a session in which nothing happens. Its shell writes its state for each, which uses its memory."""

        def durable() -> None:
            self._idle.checkpoint("again", tier="live", force=True, wait=True)

        def new_kib() -> float:
            before = self._stored()
            durable()
            return (self._stored() - before) / 1024

        return [
            Figure(
                "checkpoint, waiting until it is durable",
                "ms",
                lambda: 1000 * seconds_of(durable),
                aim=at_most(150, "ms"),
            ),
            Figure("new bytes of that, of a session that rests", "KiB", new_kib, aim=at_most(16, "KiB")),
        ]

    def restores(self) -> list[Figure]:
        """Of a capture that only the store has."""
        return [
            Figure(
                "restore from the store, exec answered",
                "ms",
                lambda: self._restore("idle-point"),
                aim=at_most(150, "ms"),
                before=lambda: self._evict("idle-point"),
            ),
            Figure(
                "the same, and no program for the store waits",
                "ms",
                lambda: self._restore("idle-point"),
                aim=at_most(150, "ms"),
                before=lambda: self._evict("idle-point", kills=True),
            ),
        ]

    def heap(self, size: int) -> list[Figure]:
        """Of a program with `size` bytes in memory."""
        said = f"a heap of {size // MIB} MiB"
        heap = self._client.start("heap", user=USER, env={"TERM": "xterm"})
        heap.exec(f"coproc python3 -c '{_HEAP.format(size=size)}'; read -r -u ${{COPROC[0]}} kept")
        images = self._home.path / "hot" / heap.checkpoint("heap-point", tier="live", wait=True).capture / "images"

        def touch() -> None:
            heap.exec('echo >&"${COPROC[1]}"; read -r -u "${COPROC[0]}" kept')

        def new_share() -> float:
            before = self._stored()
            heap.checkpoint("heap-touched", tier="live", wait=True, force=True)
            return 100 * (self._stored() - before) / size

        def evict() -> None:
            self._evict("heap-point")
            for pack in (self._home.path / "store/packs").rglob("*"):
                _forget(pack)

        return [
            Figure(
                f"new bytes, a hundredth of the pages of {said} written to",
                "%",
                new_share,
                aim=at_most(3, "%"),
                before=touch,
                max_runs=3,
            ),
            Figure(
                f"restore from the store, {said}",
                "ms",
                lambda: self._restore("heap-point"),
                lambda: _read_ms(images),
                "reading the images; both from disk",
                times_floor_at_most(1.5),
                before=evict,
                max_runs=3,
            ),
        ]

    def _stored(self) -> int:
        return self._client.disk.du("idle-point").stored_bytes

    def _evict(self, name: str, *, kills: bool = False) -> None:
        """`kills`: end the programs for the store, which wait for work."""
        if any(facts.branch == "back" for facts in self._client.sessions()):
            self._client.stop("back", discard=True)
        self._client.disk.evict(name)
        for pid in _workers(self._client) if kills else ():
            os.kill(pid, signal.SIGKILL)

    def _restore(self, name: str) -> float:
        return 1000 * seconds_of(lambda: self._client.fork(name, "back")[0].exec("true"))

    def crowd(self) -> Figure:
        """What the store takes of forks, each durable, beside what it takes of one session: times as much."""

        def grown() -> float:
            before = self._stored()
            one = self._start("alone")
            one.exec("kept=$(head -c 20000000 /dev/urandom | base64 -w0)")
            one.checkpoint("alone-point", tier="live", wait=True, force=True)
            first = self._stored() - before
            branches = [f"crowd-{number}" for number in range(CROWD)]
            for fork in self._client.fork("alone-point", *branches):
                fork.checkpoint("crowd-point", tier="live", wait=True, force=True)
            grown = (self._stored() - before) / first
            self._client.stop("alone", *branches, discard=True)
            return grown

        aim = at_most(1.02, "x")
        return Figure(f"store, {CROWD} forks durable, beside one of 27 MB", "x", grown, aim=aim, max_runs=1)


class _Meanwhile:
    """A home that puts into the store what was just captured. `heavy` has much to be put, `calm` is looked at."""

    def __init__(self, home: Home, size: int, runs: int) -> None:
        """`size`: bytes to be put each time; `runs`: how often at most, for each figure."""
        self._client = Client(home.path)
        self._written = home.path / "store/tmp"
        self._size, self._runs = size, runs
        self._calm = self._client.start("calm", user=USER, env={"TERM": "xterm"})
        self._spun = self._client.start("spun", user=USER, env={"TERM": "xterm"})
        self._heavy = self._client.start("heavy", user=USER, env={"TERM": "xterm"})
        self._spinner = Spinner(home, self._spun)
        self._most_kb = 0

    def figures(self) -> list[Figure]:
        said = f"{self._size // MIB} MiB are put into the store"
        return [
            self._figure(f"exec, API, as {said}", self._exec_ms),
            self._figure(f"pause, as {said}", self._pause_ms),
            Figure("memory of what puts it there", "MB", self._most_mb, aim=at_most(200, "MB"), max_runs=1),
        ]

    def _figure(self, name: str, measure: Callable[[], float]) -> Figure:
        """The median of up to AT_ONCE times `measure`, while something is put; beside the same at rest."""

        def at_rest() -> float:
            self._rest()
            return statistics.median(measure() for _ in range(AT_ONCE))

        def meanwhile() -> float:
            found = [measure()]
            while len(found) < AT_ONCE and self._is_put():
                found.append(measure())
            return statistics.median(found)

        aim = above_floor_at_most(3, "ms")
        return Figure(name, "ms", meanwhile, at_rest, "at rest", aim, self._put, max_runs=self._runs)

    def _exec_ms(self) -> float:
        return 1000 * seconds_of(lambda: self._calm.exec("true"))

    def _pause_ms(self) -> float:
        return self._spinner.gap_ms(lambda: take(self._spun))

    def _most_mb(self) -> float:
        """At any time while something is put. Its last program has ended, perhaps, as soon as nothing is."""
        self._most_kb = 0
        self._put()
        wait_until(self._has_ended, "what was captured is in the store", PUT_S)
        if not self._most_kb:
            raise AssertionError("no program was seen that puts something into the store")
        return self._most_kb * 1024 / MB

    def _put(self) -> None:
        """Return when the store is being written to, with much to come."""
        self._rest()
        self._heavy.exec(f"head -c {self._size} /dev/urandom > /tmp/much")
        self._heavy.checkpoint("much", tier="files", force=True)
        wait_until(self._is_put, "what was captured is being put into the store", PUT_S, brief=True)

    def _is_put(self) -> bool:
        return any(self._written.glob("*"))

    def _rest(self) -> None:
        """Wait until nothing is put."""
        wait_until(self._has_ended, "what was captured is in the store", PUT_S)

    def _has_ended(self) -> bool:
        for pid in _workers(self._client):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmHWM:"):
                        self._most_kb = max(self._most_kb, int(line.split()[1]))
        return all(job.state != "running" for job in self._client.jobs.list())


def _workers(client: Client) -> list[int]:
    """The programs that work on the home's store."""
    found = []
    for pid in procfs.family(client.status().pid):
        with contextlib.suppress(OSError):
            if b"store_program.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _read_ms(folder: Path) -> float:
    """Of all files in it, from the disk."""
    paths = list(folder.iterdir())
    for path in paths:
        _forget(path)

    def read() -> None:
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while file.read(MIB):
                    pass

    return 1000 * seconds_of(read)


def _forget(path: Path) -> None:
    """Whoever reads the file next reads it from the disk."""
    if path.is_file():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
