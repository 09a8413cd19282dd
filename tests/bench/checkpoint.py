"""Pauses of checkpoints beside other work: clients, attached files, many dirty files.

A pause is the longest gap between two readings of the clock by a process inside an otherwise idle session. Needs CRIU
and python3; the full sizes need 12 GB of disk. The area `forks` has the pause of a plain session.
"""

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial

from tests.bench.frame import Figure, Sizes, above_floor_at_most, at_most, seconds_of, times_floor_at_most
from tests.bench.ground import FROZEN, MB, Ground, open_ground, take
from tests.bench.inside import Spinner, Writer, hold, hold_memory, write_files
from tests.bench.load import BusyClients
from waypoint.linux.storage import filesystem

REST_S = 0.05  # about the duration of a checkpoint


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    with open_ground("checkpoint", sizes) as ground:
        if ground is None:
            yield []
            return
        yield [
            _without(ground),
            _terminal_pause(ground),
            *_pauses_under_load(ground),
            _files_pause(ground),
            *_attached(ground, sizes),
            *_large(ground, sizes),
            *_memory(ground, sizes),
        ]


def _without(ground: Ground) -> Figure:
    rest = select.poll()
    return Figure(
        "longest gap felt without a checkpoint",
        "ms",
        lambda: ground.spinner.gap_ms(lambda: rest.poll(1000 * REST_S)),
    )


def _terminal_pause(ground: Ground) -> Figure:
    """The pause of an idle session in which a program holds a terminal. The floor: the program holds a pipe instead."""

    def pause_with(call: str) -> Callable[[], float]:
        session = ground.start(call)
        hold(ground.home, session, call)
        spinner = Spinner(ground.home, session)
        return lambda: spinner.gap_ms(lambda: take(session))

    aim = above_floor_at_most(1, "ms")
    return Figure("pause, an inner terminal", "ms", pause_with("openpty"), pause_with("pipe"), "a pipe instead", aim)


def _pauses_under_load(ground: Ground) -> list[Figure]:
    """Pauses while three clients list all captures, branches and operations, and stream a scrollback."""
    ground.start("talkative").exec("seq 200000")
    rest = select.poll()

    def measure(act: Callable[[], object]) -> Callable[[], float]:
        def gap_ms() -> float:
            with BusyClients(ground.home, "talkative"):
                return ground.spinner.gap_ms(act)

        return gap_ms

    asked = f"three clients ask for {ground.captures} captures, branches and operations, scrollback"
    aim = above_floor_at_most(3, "ms")
    return [
        Figure(f"pause, {asked}", "ms", measure(lambda: take(ground.spun)), ground.pause_ms, "idle pause", aim),
        Figure("longest gap felt meanwhile without a checkpoint", "ms", measure(lambda: rest.poll(1000 * REST_S))),
    ]


def _files_pause(ground: Ground) -> Figure:
    """The pause of `restore --only files` after one file was changed. The floor is the pause of its capture."""
    ground.spun.checkpoint("files", tier="live")

    def restore() -> None:
        ground.spun.restore("files", only="files")

    def change() -> None:
        ground.spun.run("sh", "-c", "date >/var/tmp/changed")

    aim = above_floor_at_most(10, "ms")
    measure = partial(ground.spinner.gap_ms, restore)
    return Figure("pause of restore --only files", "ms", measure, ground.pause_ms, "pause of a checkpoint", aim, change)


def _attached(ground: Ground, sizes: Sizes) -> list[Figure]:
    source, copy = ground.home.path.parent / "attached", ground.home.path.parent / "attached-copy"
    size_mb = 10 if sizes.quick else 100
    source.write_bytes(os.urandom(size_mb * MB))

    def attach() -> float:
        return ground.plain.checkpoint("again", tier="live", force=True, attach={"model": str(source)}).paused_ms

    def more_ms() -> float:
        return 1000 * (seconds_of(attach) - seconds_of(lambda: take(ground.plain)))

    def copy_ms() -> float:
        copy.unlink(missing_ok=True)
        return 1000 * seconds_of(lambda: subprocess.run(["cp", "--reflink=auto", source, copy], check=True))

    aim = above_floor_at_most(3, "ms")
    pause = "pause without"
    return [
        Figure(f"--attach of {size_mb} MB", "ms", more_ms, copy_ms, "cp --reflink=auto", times_floor_at_most(1.5)),
        Figure("pause with --attach", "ms", attach, lambda: take(ground.plain), pause, aim),
    ]


def _large(ground: Ground, sizes: Sizes) -> list[Figure]:
    """Pauses of a session with many files, beside those of an empty one."""
    large = _Large(ground, sizes)
    total_mb, dirty_mb = (count * large.file_bytes // MB for count in (large.files, large.dirty_files))
    name = f"pause, {large.files} files, {total_mb} MB, {dirty_mb} MB dirty"

    def figure(name: str, measure: Callable[[], float], limit_ms: float, before: Callable[[], None]) -> Figure:
        aim = above_floor_at_most(limit_ms, "ms")
        return Figure(name, "ms", measure, large.empty_pause_ms, "empty session", aim, before)

    return [
        figure(name, large.pause_ms, 5, large.make_dirty),
        figure("the same, a sibling writes", large.pause_beside_writer_ms, 10, large.make_dirty_beside_writer),
        Figure("the sibling's rate meanwhile", "MB/s", large.next_rate),
    ]


class _Large:
    """A session with many files, made when it is first needed, and a session beside it that writes."""

    def __init__(self, ground: Ground, sizes: Sizes) -> None:
        self._ground = ground
        self.files = 1_000 if sizes.quick else 10_000
        self.file_bytes = 64_000 if sizes.quick else 50_000
        self.dirty_files = 2 * self.files // 5
        self._writer_bytes = (32 if sizes.quick else 300) << 20
        self._spinner: Spinner | None = None

    def make_dirty(self) -> None:
        self._make()
        write_files(self._session, self.dirty_files, self.file_bytes)

    def make_dirty_beside_writer(self) -> None:
        self._make()
        self._writer.go_on()
        self.make_dirty()

    def _make(self) -> None:
        if self._spinner is None:
            self._session = self._ground.start("large")
            write_files(self._session, self.files, self.file_bytes)
            self._writer = Writer(self._ground.home, self._ground.start("busy"), self._writer_bytes)
            self._spinner = Spinner(self._ground.home, self._session)

    def empty_pause_ms(self) -> float:
        """Return the pause of an empty session, after the data of the previous run was written to the disk."""
        daemon = self._ground.client.status().pid
        filesystem.sync_filesystem(f"/proc/{daemon}/root{self._ground.home.path}/pool")
        return self._ground.pause_ms()

    def pause_ms(self) -> float:
        assert self._spinner is not None
        return self._spinner.gap_ms(lambda: take(self._session))

    def pause_beside_writer_ms(self) -> float:
        try:
            return self.pause_ms()
        finally:
            self._writer.stop_and_note()

    def next_rate(self) -> float:
        """Return the next of the rates that the previous figure has recorded."""
        rates = self._writer.rates
        rates.append(rates.pop(0))
        return rates[-1]


def _memory(ground: Ground, sizes: Sizes) -> list[Figure]:
    """Checkpoints of a session with much memory: the first ones of a program, and later ones after which nothing was
    written.
    """
    fresh = _Filled(ground, "fresh", (128 if sizes.quick else 1024) << 20)
    kept = _Filled(ground, "kept", (128 if sizes.quick else 2048) << 20)
    runs = 3 if sizes.quick else 6
    return [
        Figure(
            f"pause, first checkpoint of {fresh.size >> 20} MiB of memory",
            "ms",
            fresh.pause_ms,
            fresh.raw_ms,
            FROZEN,
            at_most(120, "ms"),
            fresh.renew,
            runs,
        ),
        Figure("write(2) of as many bytes", "ms", fresh.write_ms, max_runs=runs),
        Figure(
            f"pause, {kept.size >> 20} MiB of memory that has not changed",
            "ms",
            kept.pause_ms,
            kept.raw_ms,
            FROZEN,
            at_most(150, "ms"),
            kept.keep,
            runs,
        ),
        Figure(
            "new bytes of its images", "MB", kept.next_new_mb, aim=at_most(kept.size / MB / 100, "MB"), max_runs=runs
        ),
    ]


class _Filled:
    """A session with a program that has `size` bytes of memory, made when it is first needed."""

    def __init__(self, ground: Ground, branch: str, size: int) -> None:
        self._ground = ground
        self._branch = branch
        self.size = size
        self._pid = 0
        self._seen: set[int] = set()  # inodes of images
        self._new_mb: list[float] = []

    def renew(self) -> None:
        """Let another program have the memory, and none of it be in a checkpoint."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._pid = hold_memory(self._ground.home, self._session, self.size)
        else:
            self.keep()

    def keep(self) -> None:
        """Have the program, and a checkpoint of it."""
        if not self._pid:
            self._session = self._ground.start(self._branch)
            self._pid = hold_memory(self._ground.home, self._session, self.size)
            self._spinner = Spinner(self._ground.home, self._session)
            self.pause_ms()
            self._new_mb.clear()

    def pause_ms(self) -> float:
        taken: list[str] = []

        def checkpoint() -> str:
            return self._session.checkpoint("again", tier="live", force=True, anew=True).capture

        pause = self._spinner.gap_ms(lambda: taken.append(checkpoint()))
        found = [path.stat() for path in (self._ground.home.path / "hot" / taken[0] / "images").rglob("*.img")]
        self._new_mb.append(sum(file.st_size for file in found if file.st_ino not in self._seen) / MB)
        self._seen.update(file.st_ino for file in found)
        return pause

    def next_new_mb(self) -> float:
        """Return the next of the sizes that the previous figure has recorded."""
        self._new_mb.append(self._new_mb.pop(0))
        return self._new_mb[-1]

    def write_ms(self) -> float:
        """Write random bytes of the same size to a file beside the home."""
        path, block = self._ground.home.path.parent / "written", os.urandom(1 << 20)
        with path.open("wb", buffering=0) as file:
            taken_ms = 1000 * seconds_of(lambda: [file.write(block) for _ in range(self.size >> 20)])
        path.unlink()
        return taken_ms

    def raw_ms(self) -> float:
        self.keep()
        return self._ground.raw.dump(self._branch).frozen_ms
