"""The speed of forks: checkpoints, forks, restores and commands of live sessions, beside bare CRIU in the same run.

A pause is the longest gap between two readings of the clock by a process inside an otherwise idle session. Needs CRIU
and python3; the full sizes need 30 GB of disk and 16 GB of memory.
"""

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench import claude
from tests.bench.frame import (
    Aim,
    Figure,
    Sizes,
    above_floor_at_most,
    at_most,
    both,
    ms_of_command,
    seconds_of,
    times_floor_at_most,
)
from tests.bench.ground import CROWD, FROZEN, MB, RESTORED, SLEEP, USER, Ground, open_ground, take
from tests.bench.inside import Spinner, ask_server, record_of, start_server, write_files
from tests.bench.session import exec_figures
from tests.homes import open_home
from tests.places import make_temp_root
from tests.waiting import wait_until
from waypoint.client.sdk import Client, Session
from waypoint.linux.tasks import cgroups

MANY = 64
TRIES = 10  # until a session has done nothing since its last checkpoint
FEW_RUNS = 5  # of figures that move a gigabyte


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[Iterable[Figure]]:
    with open_ground("forks", sizes) as ground:
        yield _each(ground, sizes) if ground else []


def _each(ground: Ground, sizes: Sizes) -> Iterator[Figure]:
    """Large sessions are made when their figures are due, and end after these."""
    yield from _pauses(ground)
    yield from _checkpoints(ground)
    yield from exec_figures(ground.home, ground.plain)
    yield from _forks(ground)
    yield from _restores(ground)
    yield from _standbys(ground, sizes)
    yield from _crowds(ground, sizes)
    yield from _memory(ground, sizes)
    yield from _unchanged(ground, sizes)
    yield from _files(ground, sizes)
    yield from claude.figures(ground)


def _ms(act: Callable[[], object]) -> float:
    return 1000 * seconds_of(act)


def _pauses(ground: Ground) -> list[Figure]:
    def raw_frozen_ms() -> float:
        frozen: list[float] = []
        ground.spinner.gap_ms(lambda: frozen.append(ground.raw.dump("spun", in_memory=True).frozen_ms))
        return frozen[0]

    aim = both(at_most(12, "ms"), above_floor_at_most(3, "ms"))
    return [
        Figure("pause, felt inside", "ms", ground.pause_ms, raw_frozen_ms, f"{FROZEN}, tmpfs", aim),
        Figure(
            "pause, as the daemon says",
            "ms",
            lambda: take(ground.plain),
            lambda: ground.raw.dump("plain").frozen_ms,
            f"{FROZEN}, disk",
        ),
    ]


def _checkpoints(ground: Ground) -> list[Figure]:
    argv = ground.home.argv("checkpoint", "-b", "plain", "--tier", "live", "--force", "--anew", "again")

    def figure(name: str, limit_ms: float, measure: Callable[[], float]) -> Figure:
        def whole_ms() -> float:
            return ground.raw.dump("plain", in_memory=True).whole_ms

        return Figure(name, "ms", measure, whole_ms, "raw dump, tmpfs", at_most(limit_ms, "ms"))

    def is_reused() -> bool:
        return ground.plain.checkpoint(f"same-{secrets.token_hex(8)}").reused

    def settle() -> None:
        take(ground.plain)
        if not any(is_reused() for _ in range(TRIES)):
            raise RuntimeError("an unchanged session was captured each time")

    def name_again() -> None:
        if not is_reused():
            raise RuntimeError("the unchanged session was captured")

    return [
        figure("checkpoint, API", 28, lambda: _ms(lambda: take(ground.plain))),
        figure("checkpoint, command", 45, lambda: ms_of_command(argv, ground.home.env)),
        Figure(
            "checkpoint, nothing has changed, API",
            "ms",
            lambda: _ms(name_again),
            aim=at_most(3, "ms"),
            before=settle,
        ),
    ]


def _forks(ground: Ground) -> list[Figure]:
    fork = ground.home.argv("fork", "point", "new")
    ask = ground.home.argv("exec", "-b", "new", "--", "true")

    def through_the_api() -> None:
        (new,) = ground.client.fork("point", "new")
        new.exec("true")

    def figure(name: str, measure: Callable[[], float], aim: Aim) -> Figure:
        return Figure(name, "ms", measure, ground.raw_restore_ms, RESTORED, aim, lambda: ground.discard("new"))

    return [
        figure("fork, exec answered, API", lambda: _ms(through_the_api), above_floor_at_most(12, "ms")),
        figure(
            "fork, exec answered, commands",
            lambda: ms_of_command(fork, ground.home.env) + ms_of_command(ask, ground.home.env),
            at_most(75, "ms"),
        ),
    ]


def _crowds(ground: Ground, sizes: Sizes) -> Iterator[Figure]:
    """Many forks of a session with a server, each of which answers on its own port."""
    server = Server(ground, "serving", mib=0)
    processors = len(os.sched_getaffinity(0))

    def figure(count: int, aim: Aim, max_runs: int | None = None) -> Figure:
        return Figure(
            f"{count} forks, all have answered",
            "ms",
            lambda: server.forks_ms(count),
            lambda: ground.raw.restore_ms(server.branch, server.capture) * count / processors,
            f"{count} raw restores / {processors} processors",
            aim,
            server.discard_forks,
            max_runs,
        )

    many = 2 * CROWD if sizes.quick else MANY
    yield figure(CROWD, times_floor_at_most(1.4))
    yield figure(many, at_most(2500, "ms"), FEW_RUNS)
    server.end()


def _restores(ground: Ground) -> list[Figure]:
    """The replaced session is dumped after the answer: a checkpoint before each run waits for that, an undo, too."""
    (back,) = ground.client.fork("point", "back")

    def settle() -> None:
        back.checkpoint("settled", force=True)

    def restore() -> None:
        back.restore("point")

    def restore_and_ask() -> None:
        restore()
        back.exec("true")

    def figure(what: str, act: Callable[[], object], limit_ms: float, before: Callable[[], object]) -> Figure:
        aim = at_most(limit_ms, "ms")
        return Figure(what, "ms", lambda: _ms(act), ground.raw_restore_ms, RESTORED, aim, before)

    def undo() -> None:
        ground.client.history.undo(branch="back")

    return [
        figure("restore in place", restore, 55, settle),
        figure("restore in place, exec answered", restore_and_ask, 55, settle),
        figure("undo of a restore in place, at once", undo, 110, restore),
    ]


def _standbys(ground: Ground, sizes: Sizes) -> Iterator[Figure]:
    """The same session in a home that keeps a standby ready."""
    within = None if sizes.quick else make_temp_root()
    with open_home("bench-standbys", within, options=("--standbys", "1")) as home:
        client = Client(home.path)
        plain = client.start("plain", user=USER, env={"TERM": "xterm"})
        plain.exec(SLEEP)
        plain.checkpoint("point", tier="live")
        (back,) = client.fork("point", "back")
        made: list[Session] = []

        def await_standby() -> None:
            wait_until(lambda: client.status().standbys == 1, "a standby is ready")

        def clear() -> None:
            while made:
                made.pop().stop(discard=True)
            await_standby()

        def fork() -> None:
            made.extend(client.fork("point", "new"))

        def fork_and_ask() -> None:
            fork()
            made[0].exec("true")

        def restore() -> None:
            back.restore("point")

        def figure(what: str, act: Callable[[], object], limit_ms: float, before: Callable[[], object]) -> Figure:
            aim = at_most(limit_ms, "ms")
            return Figure(what, "ms", lambda: _ms(act), ground.raw_restore_ms, RESTORED, aim, before)

        yield figure("fork from a standby, API", fork, 8, clear)
        yield figure("fork from a standby, exec answered, API", fork_and_ask, 8, clear)
        yield figure("restore in place from a standby", restore, 5, await_standby)


def _memory(ground: Ground, sizes: Sizes) -> Iterator[Figure]:
    """A session whose server holds a gigabyte, and its forks."""
    mib = 64 if sizes.quick else 1024
    server = Server(ground, "large", mib)
    spinner = Spinner(ground.home, server.session)
    copies = 3 if sizes.quick else CROWD

    def write_ms() -> float:
        return _ms_to_write(mib)

    def resident_ms() -> float:
        return server.forks_ms(1) + _ms(server.touch_forks)

    def raw_ms() -> float:
        return ground.raw.restore_ms(server.branch, server.capture)

    def fork(what: str, measure: Callable[[], float], limit_ms: float) -> Figure:
        aim = at_most(limit_ms, "ms")
        return Figure(what, "ms", measure, raw_ms, RESTORED, aim, server.discard_forks, FEW_RUNS)

    def pause(what: str, measure: Callable[[], float], aim: Aim, before: Callable[[], None] | None = None) -> Figure:
        floor = "write(2) of the same bytes, tmpfs"
        return Figure(f"pause, a program of {mib} MiB{what}", "ms", measure, write_ms, floor, aim, before, FEW_RUNS)

    yield pause("", lambda: spinner.gap_ms(lambda: take(server.session)), at_most(120, "ms"))
    yield fork(f"fork of {mib} MiB, its server has answered", lambda: server.forks_ms(1), 80)
    yield fork(f"fork of {mib} MiB, each page was read", resident_ms, 1500)
    yield fork(f"{copies} forks of {mib} MiB, all have answered", lambda: server.forks_ms(copies), 1000)
    yield Figure(
        f"memory of {copies} untouched forks of {mib} MiB",
        "x",
        lambda: server.memory_of_forks(copies),
        aim=at_most(1.3, "x"),
        before=server.discard_forks,
        max_runs=1,
    )
    yield pause(", its first", lambda: take(server.session), times_floor_at_most(1), lambda: server.restart(mib))
    yield from _restores_in_place(server, mib, raw_ms)
    server.end()


def _restores_in_place(server: "Server", mib: int, raw_ms: Callable[[], float]) -> Iterator[Figure]:
    """CRIU dumps the replaced session before the answer, since it has a server. If the session has a checkpoint, its
    memory is copied already.
    """

    def checkpoint() -> None:
        take(server.session)

    what = f"restore in place of {mib} MiB"
    for name, before in ((f"{what}, just after a checkpoint", checkpoint), (f"{what}, no checkpoint", server.restore)):
        yield Figure(name, "ms", lambda: _ms(server.restore), raw_ms, RESTORED, None, before, FEW_RUNS)


class Server:
    """A session on `branch` with a server that holds `mib` MiB of memory, a capture of it, and forks of the capture.
    `prepare` is called with the session before the capture.
    """

    def __init__(
        self, ground: Ground, branch: str, mib: int, prepare: Callable[[Session], object] = lambda session: None
    ) -> None:
        self._ground = ground
        self._kept = secrets.token_hex(8)
        self._forks: list[Session] = []
        self.branch = branch
        self.session = ground.start(branch)
        self.session.exec(SLEEP)
        self._pid = start_server(ground.home, self.session, self._kept, mib)
        self._sum = ask_server(self.session, "sum")
        prepare(self.session)
        self.capture = self.session.checkpoint(f"of-{branch}", tier="live").capture

    def forks_ms(self, count: int) -> float:
        """Return the time until so many new forks have answered, each with what its server keeps in memory."""
        branches = [f"{self.branch}-{number}" for number in range(1, count + 1)]
        begin = time.perf_counter()
        self._forks = self._ground.client.fork(f"of-{self.branch}", *branches)
        with ThreadPoolExecutor(CROWD) as threads:
            said = list(threads.map(ask_server, self._forks, range(count)))
        taken_ms = 1000 * (time.perf_counter() - begin)
        if said != [f"{self._kept} {number}" for number in range(count)]:
            raise RuntimeError(f"the forks answered {said}")
        return taken_ms

    def restore(self) -> None:
        """Restore the capture in place, and let the server answer."""
        self.session.restore(f"of-{self.branch}")
        if (said := ask_server(self.session, 0)) != f"{self._kept} 0":
            raise RuntimeError(f"the restored server answered {said}")

    def touch_forks(self) -> None:
        """Let the server of each fork read all of its memory."""
        said = [ask_server(fork, "sum") for fork in self._forks]
        if said != [self._sum] * len(said):
            raise RuntimeError(f"the memory of a fork differs: {said}, not {self._sum}")

    def memory_of_forks(self, count: int) -> float:
        """Return the memory of so many new forks, divided by that of the session."""
        self.forks_ms(count)
        return sum(map(self._pss_kib, self._forks)) / self._pss_kib(self.session)

    def discard_forks(self) -> None:
        self._ground.discard(*(fork.branch for fork in self._forks))
        self._forks = []

    def end(self) -> None:
        self.discard_forks()
        self._ground.discard(self.branch)

    def restart(self, mib: int) -> None:
        """Replace the server by a new one with other memory, of `mib` MiB."""
        os.kill(self._pid, 9)
        self.session.exec("wait %2 2>/dev/null; true")
        self._pid = start_server(self._ground.home, self.session, self._kept, mib)

    def _pss_kib(self, session: Session) -> int:
        members = cgroups.members(record_of(self._ground.home, session.branch).cgroup)
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in members]
        return sum(int(line.split()[1]) for rollup in rollups for line in rollup if line.startswith("Pss:"))


def _ms_to_write(mib: int) -> float:
    """Return the time of write(2) of so many MiB to a new file of a tmpfs."""
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir="/dev/shm", buffering=0) as file:
        return _ms(lambda: [file.write(block) for _ in range(mib)])


def _unchanged(ground: Ground, sizes: Sizes) -> Iterator[Figure]:
    """Checkpoints of a session with much memory that has not changed since its last checkpoint."""
    mib = 64 if sizes.quick else 2_000 * MB >> 20
    session = ground.start("unchanged")
    start_server(ground.home, session, "", mib)
    spinner = Spinner(ground.home, session)
    take(session)

    def new_share() -> float:
        before = _kept_bytes(ground)
        take(session)
        return 100 * (_kept_bytes(ground) - before) / (mib << 20)

    what = f"a second checkpoint of {mib} MiB that did not change"
    yield Figure(
        f"pause of {what}",
        "ms",
        lambda: spinner.gap_ms(lambda: take(session)),
        ground.pause_ms,
        "pause of a small session",
        at_most(150, "ms"),
        max_runs=3,
    )
    yield Figure(f"new bytes of {what}", "%", new_share, aim=at_most(1, "%"), max_runs=1)
    ground.discard("unchanged")


def _kept_bytes(ground: Ground) -> int:
    return ground.client.history.du().hot_bytes


def _files(ground: Ground, sizes: Sizes) -> Iterator[Figure]:
    count = 1_000 if sizes.quick else 100_000
    session = ground.start("files")
    write_files(session, count, 100)
    spinner = Spinner(ground.home, session)
    yield Figure(
        f"pause, {count} files of which 10 have changed",
        "ms",
        lambda: spinner.gap_ms(lambda: take(session)),
        ground.pause_ms,
        "an empty session",
        above_floor_at_most(3, "ms"),
        lambda: write_files(session, 10, 100),
    )
    ground.discard("files")
