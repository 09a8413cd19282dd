"""Taking a capture of a live session: what the checkpoint transaction does between asking and recording.

Order: the dirty data is written out while the session still runs; CRIU is started and asked, and just before it looks
for the tasks it says so (`pre-dump`): then the session is frozen, its terminal drained; CRIU dumps, and the files are
sealed meanwhile; the session goes on. Nothing is on record before all of it has worked.
"""

import contextlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from waypoint.capture.hot import Hot
from waypoint.capture.pause import Pause, Subject
from waypoint.capture.steps import Step, reach
from waypoint.linux.descriptors import open_folder
from waypoint.model.errors import CannotCapture, WaypointError
from waypoint.model.records import Tier
from waypoint.processes.criu_causes import CriuFailed
from waypoint.processes.criu_options import EVERYTHING, DumpOptions, Notice
from waypoint.processes.criu_rpc import Criu
from waypoint.upper.contract import Pool

# CRIU gives up if it cannot stop a task for so long; the session stands still meanwhile.
STOP_S = 5


@dataclass(slots=True)
class Taken:
    """What came of it. The tree is in the pool, the rest in the hot area, both under the capture's id."""

    tier: Tier
    paused_ms: float
    frozen_us: int = 0
    image_bytes: int = 0
    degraded: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Means:
    """`criu` started beside the session; None with the reason `why_not` if there is none."""

    pool: Pool
    hot: Hot
    criu: Criu | None
    why_not: str = ""


def take(
    means: Means, subject: Subject, dump: DumpOptions, capture_id: str, tier: Tier | None, *, hold: bool = False
) -> Taken:
    """Take a capture. Blocks. `dump`: the options, but for folders and notices. `tier` None: the best that can be had.

    `hold`: leave the session frozen. Raises CannotCapture if `tier` is `live` and cannot be had, Failed (disk full).
    Then the session goes on as it was, and nothing is left in pool or hot area.
    """
    try:
        means.hot.make(capture_id)
        if tier == "files":
            _prepare(means, subject)
            return _files(means, subject, capture_id, hold=hold)
        try:
            if means.criu is None:
                raise CannotCapture("dump", "the processes", means.why_not, "see 'waypoint doctor'")
            return _live(means, means.criu, subject, dump, capture_id, hold=hold)
        except CannotCapture as error:
            if tier == "live":
                raise
            return _without_processes(means, subject, capture_id, error, hold=hold)
    except BaseException:
        means.pool.remove(capture_id)
        means.hot.remove(capture_id)
        raise


def _prepare(means: Means, subject: Subject) -> None:
    """Write out what is dirty, so that the frozen part has little to write."""
    means.pool.sync(subject.tree)
    reach(Step.PREPARED)


def _files(means: Means, subject: Subject, capture_id: str, *, hold: bool) -> Taken:
    pause = Pause(subject, means.pool, capture_id)
    try:
        pause.begin(for_dump=False)
        pause.snapshot()
        pause.finish()
    except BaseException:
        pause.end()
        raise
    pause.end(hold=hold)
    return Taken("files", pause.ms)


def _without_processes(means: Means, subject: Subject, capture_id: str, error: CannotCapture, *, hold: bool) -> Taken:
    """CRIU refuses. Begin again, with the files alone."""
    means.pool.remove(capture_id)
    means.hot.remove(capture_id)
    means.hot.make(capture_id)
    taken = _files(means, subject, capture_id, hold=hold)
    taken.degraded.append(f"without its processes: {error.said}")
    return taken


def _live(means: Means, criu: Criu, subject: Subject, dump: DumpOptions, capture_id: str, *, hold: bool) -> Taken:
    pause = Pause(subject, means.pool, capture_id)
    images = means.hot.images(capture_id)
    snapshot: Future[None]

    def stop(notice: Notice) -> None:
        nonlocal snapshot
        if notice.stage == "pre-dump":
            prepared.result()
            pause.begin(for_dump=True)
            snapshot = beside.submit(pause.snapshot)
        elif notice.stage == "post-dump":
            reach(Step.DUMPED)
            snapshot.result()
            if (images / "remap-fpath.img").exists():
                # A file that is open under a name that was removed, and has another one, gets a name from CRIU until
                # the dump ends, by which the restore finds it. The snapshot may have come before that.
                means.pool.remove(capture_id)
                pause.snapshot()
            pause.finish()

    # CRIU takes its time to start: so long the dirty data is written out.
    with open_folder(images) as fd, open_folder(images.parent) as work, ThreadPoolExecutor(1) as beside:
        prepared = beside.submit(_prepare, means, subject)
        options = replace(dump, images_fd=fd, work_fd=work, freeze_cgroup=subject.cgroup, timeout_s=STOP_S)
        try:
            let_go = None if hold else pause.end
            result = criu.dump(replace(options, on_notice=stop, on_let_go=let_go))
        except CriuFailed as error:
            known = _diagnosed(means, criu, options, error, pause, capture_id)
            pause.end()
            raise known from error
        except BaseException:
            pause.end()
            raise
        pause.end(hold=hold)
    for name in ("dump.log", "stats-dump"):
        (images.parent / name).unlink(missing_ok=True)
    return Taken("live", pause.ms, result.stats.frozen_us, image_bytes(images))


def _diagnosed(
    means: Means, criu: Criu, options: DumpOptions, error: CriuFailed, pause: Pause, capture_id: str
) -> CriuFailed:
    """`error` with a log that says more: the dump is tried once more, with the session still frozen. One that died
    without a word would do so again.
    """
    if pause.began and not error.died:
        with contextlib.suppress(WaypointError):
            try:
                criu.dump(replace(options, log_level=EVERYTHING))
            except CriuFailed as again:
                error = again
    return error.moved(means.hot.keep_log(error.log, f"{capture_id}-dump.log"))


def image_bytes(images: Path) -> int:
    """The size of a live capture's images, all together. Raises FileNotFoundError."""
    with os.scandir(images) as entries:
        return sum(entry.stat().st_size for entry in entries)
