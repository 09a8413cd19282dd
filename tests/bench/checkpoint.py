"""Checkpoints, forks and restores of live sessions, beside bare CRIU on the same sessions.

A pause is the longest gap between two readings of the clock by a process inside an otherwise idle session. Needs CRIU
and python3; the full sizes need 12 GB of disk.
"""

import contextlib
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.bench.frame import (
    Figure,
    Sizes,
    above_floor_at_most,
    at_most,
    both,
    ms_of_command,
    seconds_of,
    times_floor_at_most,
)
from tests.bench.inside import Spinner, Writer, ask_server, hold, start_server, write_files
from tests.bench.load import BusyClients, fill_history
from tests.bench.raw_criu import RawCriu
from tests.homes import Home, open_home
from tests.needs import missing
from tests.places import make_temp_root
from waypoint.client.sdk import Client, Session
from waypoint.linux.storage import filesystem

USER = "nobody"  # has no rc files, which would be measured too
MB = 1_000_000
CROWD = 12
REST_S = 0.05  # about the duration of a checkpoint
FROZEN = "raw dump, frozen"
RESTORED = "raw restore"
SLEEP = "sleep 100000 &"


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    why_not = missing("criu")
    if why_not:
        print(f"checkpoint: no figures without CRIU: {why_not}", file=sys.stderr)
        yield []
        return
    # The full sizes use a pool of the default size.
    with open_home("bench", None if sizes.quick else make_temp_root()) as home:
        bench = _Bench(home)
        captures = 300 if sizes.quick else 3000
        fill_history(home, bench.point, captures)
        with RawCriu(home, bench.client.status().pid) as raw:
            bench.raw = raw
            yield [
                *_pauses(bench),
                _terminal_pause(bench),
                *_pauses_under_load(bench, captures),
                _files_pause(bench),
                *_checkpoints(bench),
                *_attached(bench, sizes),
                *_forks(bench),
                _crowd(bench),
                _restore(bench),
                *_large(bench, sizes),
            ]


class _Bench:
    """A home with two sessions, each an idle bash with a background job: `plain` has a sleep, `spun` has the spinner.

    `point` is a capture of `plain`.
    """

    raw: RawCriu

    def __init__(self, home: Home) -> None:
        self.home = home
        self.client = Client(home.path)
        self.plain = self.start("plain")
        self.plain.exec(SLEEP)
        self.point = self.plain.checkpoint("point", tier="live").capture
        self.spun = self.start("spun")
        self.spinner = Spinner(home, self.spun)

    def start(self, branch: str) -> Session:
        return self.client.start(branch, user=USER, env={"TERM": "xterm"})

    def pause_ms(self) -> float:
        """Return the pause of a checkpoint of `spun`, measured inside the session."""
        return self.spinner.gap_ms(lambda: take(self.spun))

    def raw_restore_ms(self) -> float:
        return self.raw.restore_ms("plain", self.point)

    def discard(self, *branches: str) -> None:
        """Discard the sessions of those branches that are live."""
        live = {facts.branch for facts in self.client.sessions()}.intersection(branches)
        with ThreadPoolExecutor(CROWD) as threads:
            list(threads.map(lambda branch: self.client.session(branch).stop(discard=True), live))


def take(session: Session) -> float:
    """Checkpoint the session with its processes. Return the pause in ms that the daemon reports."""
    return session.checkpoint("again", tier="live", force=True, anew=True).paused_ms


def _pauses(bench: _Bench) -> list[Figure]:
    def raw_frozen_ms() -> float:
        frozen: list[float] = []
        bench.spinner.gap_ms(lambda: frozen.append(bench.raw.dump("spun").frozen_ms))
        return frozen[0]

    aim = both(above_floor_at_most(5, "ms"), at_most(12, "ms"))
    rest = select.poll()
    return [
        Figure("pause, felt inside", "ms", bench.pause_ms, raw_frozen_ms, FROZEN, aim),
        Figure(
            "longest gap felt without a checkpoint",
            "ms",
            lambda: bench.spinner.gap_ms(lambda: rest.poll(1000 * REST_S)),
        ),
        Figure(
            "pause, as the daemon says",
            "ms",
            lambda: take(bench.plain),
            lambda: bench.raw.dump("plain").frozen_ms,
            FROZEN,
        ),
    ]


def _terminal_pause(bench: _Bench) -> Figure:
    """The pause of an idle session in which a program holds a terminal. The floor: the program holds a pipe instead."""

    def pause_with(call: str) -> Callable[[], float]:
        session = bench.start(call)
        hold(bench.home, session, call)
        spinner = Spinner(bench.home, session)
        return lambda: spinner.gap_ms(lambda: take(session))

    aim = above_floor_at_most(1, "ms")
    return Figure("pause, an inner terminal", "ms", pause_with("openpty"), pause_with("pipe"), "a pipe instead", aim)


def _pauses_under_load(bench: _Bench, captures: int) -> list[Figure]:
    """Pauses while three clients list all captures, branches and operations, and stream a scrollback."""
    bench.start("talkative").exec("seq 200000")
    rest = select.poll()

    def measure(act: Callable[[], object]) -> Callable[[], float]:
        def gap_ms() -> float:
            with BusyClients(bench.home, "talkative"):
                return bench.spinner.gap_ms(act)

        return gap_ms

    asked = f"three clients ask for {captures} captures, branches and operations, scrollback"
    aim = above_floor_at_most(3, "ms")
    return [
        Figure(f"pause, {asked}", "ms", measure(lambda: take(bench.spun)), bench.pause_ms, "idle pause", aim),
        Figure("longest gap felt meanwhile without a checkpoint", "ms", measure(lambda: rest.poll(1000 * REST_S))),
    ]


def _files_pause(bench: _Bench) -> Figure:
    """The pause of `restore --only files` after one file was changed. The floor is the pause of its capture."""
    bench.spun.checkpoint("files", tier="live")

    def restore() -> None:
        bench.spun.restore("files", only="files")

    def change() -> None:
        bench.spun.run("sh", "-c", "date >/var/tmp/changed")

    aim = above_floor_at_most(10, "ms")
    measure = partial(bench.spinner.gap_ms, restore)
    return Figure("pause of restore --only files", "ms", measure, bench.pause_ms, "pause of a checkpoint", aim, change)


def _checkpoints(bench: _Bench) -> list[Figure]:
    argv = bench.home.argv("checkpoint", "-b", "plain", "--tier", "live", "--force", "--anew", "again")

    def figure(name: str, limit_ms: float, measure: Callable[[], float]) -> Figure:
        def whole_ms() -> float:
            return bench.raw.dump("plain").whole_ms

        return Figure(name, "ms", measure, whole_ms, "raw dump", at_most(limit_ms, "ms"))

    def name_again() -> None:
        if not bench.plain.checkpoint(f"same-{secrets.token_hex(8)}").reused:
            raise RuntimeError("the unchanged session was captured")

    return [
        Figure(
            "checkpoint, nothing has changed, API",
            "ms",
            lambda: 1000 * seconds_of(name_again),
            aim=at_most(3, "ms"),
            before=lambda: take(bench.plain),
        ),
        figure("checkpoint, API", 50, lambda: 1000 * seconds_of(lambda: take(bench.plain))),
        figure("checkpoint, command", 80, lambda: ms_of_command(argv, bench.home.env)),
    ]


def _attached(bench: _Bench, sizes: Sizes) -> list[Figure]:
    source, copy = bench.home.path.parent / "attached", bench.home.path.parent / "attached-copy"
    size_mb = 10 if sizes.quick else 100
    source.write_bytes(os.urandom(size_mb * MB))

    def attach() -> float:
        return bench.plain.checkpoint("again", tier="live", force=True, attach={"model": str(source)}).paused_ms

    def more_ms() -> float:
        return 1000 * (seconds_of(attach) - seconds_of(lambda: take(bench.plain)))

    def copy_ms() -> float:
        copy.unlink(missing_ok=True)
        return 1000 * seconds_of(lambda: subprocess.run(["cp", "--reflink=auto", source, copy], check=True))

    aim = above_floor_at_most(3, "ms")
    pause = "pause without"
    return [
        Figure(f"--attach of {size_mb} MB", "ms", more_ms, copy_ms, "cp --reflink=auto", times_floor_at_most(1.5)),
        Figure("pause with --attach", "ms", attach, lambda: take(bench.plain), pause, aim),
    ]


def _forks(bench: _Bench) -> list[Figure]:
    fork = bench.home.argv("fork", "point", "new")
    ask = bench.home.argv("exec", "-b", "new", "--", "true")

    def through_the_api() -> None:
        (new,) = bench.client.fork("point", "new")
        new.exec("true")

    def clear() -> None:
        bench.discard("new")

    return [
        Figure(
            "fork, exec answered, API",
            "ms",
            lambda: 1000 * seconds_of(through_the_api),
            bench.raw_restore_ms,
            RESTORED,
            both(times_floor_at_most(2), at_most(50, "ms")),
            clear,
        ),
        Figure(
            "fork, exec answered, commands",
            "ms",
            lambda: ms_of_command(fork, bench.home.env) + ms_of_command(ask, bench.home.env),
            bench.raw_restore_ms,
            RESTORED,
            at_most(75, "ms"),
            clear,
        ),
    ]


def _crowd(bench: _Bench) -> Figure:
    """Many forks of a session with a server, each of which answers on its own port."""
    kept = secrets.token_hex(8)
    serving = bench.start("serving")
    serving.exec(SLEEP)
    start_server(bench.home, serving, kept)
    capture = serving.checkpoint("served", tier="live").capture
    processors = len(os.sched_getaffinity(0))
    branches = [f"crowd-{number}" for number in range(1, CROWD + 1)]

    def measure() -> float:
        begin = time.perf_counter()
        forks = bench.client.fork("served", *branches)
        with ThreadPoolExecutor(CROWD) as threads:
            said = list(threads.map(ask_server, forks, range(CROWD)))
        taken_ms = 1000 * (time.perf_counter() - begin)
        if said != [f"{kept} {number}" for number in range(CROWD)]:
            raise RuntimeError(f"the forks answered {said}")
        return taken_ms

    return Figure(
        f"{CROWD} forks, all have answered",
        "ms",
        measure,
        lambda: bench.raw.restore_ms("serving", capture) * CROWD / processors,
        f"{CROWD} raw restores / {processors} processors",
        at_most(200, "ms"),
        lambda: bench.discard(*branches),
    )


def _restore(bench: _Bench) -> Figure:
    (back,) = bench.client.fork("point", "back")

    def restore() -> None:
        back.restore("point")
        back.exec("true")

    return Figure(
        "restore in place, exec answered",
        "ms",
        lambda: 1000 * seconds_of(restore),
        bench.raw_restore_ms,
        RESTORED,
        at_most(100, "ms"),
    )


def _large(bench: _Bench, sizes: Sizes) -> list[Figure]:
    """Pauses of a session with many files, beside those of an empty one."""
    large = _Large(bench, sizes)
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

    def __init__(self, bench: _Bench, sizes: Sizes) -> None:
        self._bench = bench
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
            self._session = self._bench.start("large")
            write_files(self._session, self.files, self.file_bytes)
            self._writer = Writer(self._bench.home, self._bench.start("busy"), self._writer_bytes)
            self._spinner = Spinner(self._bench.home, self._session)

    def empty_pause_ms(self) -> float:
        """Return the pause of an empty session, after the data of the previous run was written to the disk."""
        daemon = self._bench.client.status().pid
        filesystem.sync_filesystem(f"/proc/{daemon}/root{self._bench.home.path}/pool")
        return self._bench.pause_ms()

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
