"""Storing captures as images: in the background, some seconds after an operation, or at once for `--wait`.

Captures that a name stands for are stored, the oldest first. Those that only an undo needs are stored when they take
too much space outside of the store, to be evicted (housekeeping.py): an agent that often goes back makes many of them.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

import msgspec

from waypoint.capture.captures import Captures
from waypoint.linux.tasks.stages import OpenStage, stage
from waypoint.model.activity import Progress
from waypoint.model.errors import Failed, StateConflict, WaypointError
from waypoint.model.records import Capture
from waypoint.model.stages import Stage
from waypoint.records.names import Names
from waypoint.service.background.bugs import as_problem
from waypoint.service.background.jobs import Job, Jobs

KIND = "ingest"
QUIET_S, LONGEST_S = 5.0, 60.0
"""Storing begins when no operation has come for QUIET_S, and at the latest after LONGEST_S."""
_BEGIN_AGAIN_S = 0.05
AGAIN_S = 600.0
"""A capture that could not be stored is tried again after this time, or when a request waits for it."""

log = logging.getLogger(__name__)


class Storing:
    """Stores the captures of a home. `lock`: held while images are stored, or removed."""

    def __init__(self, names: Names, captures: Captures, jobs: Jobs, on_stored: Callable[[], Awaitable[None]]) -> None:
        """`on_stored`: awaited when there is nothing left to be stored, and each LONGEST_S while there is."""
        self._names = names
        self._captures = captures
        self._jobs = jobs
        self._on_stored = on_stored
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._first_due = 0.0
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}  # by capture
        self._stages: dict[str, list[OpenStage]] = {}  # of the requests that wait, by capture
        self._failed_at: dict[str, float] = {}
        self._is_closed = False
        self.lock = threading.Lock()

    def later(self) -> None:
        """Store the captures that are not stored yet, when there are no operations for a while. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._schedule)

    async def wait(self, capture: Capture) -> None:
        """Store this capture now, if it is not stored, and wait until it is durable. Raises WaypointError."""
        if self._names.standing(capture.id).durable:
            return
        future = self._loop.create_future()
        self._waiting.setdefault(capture.id, []).append(future)
        self._begin()
        with stage(Stage.STORE, unit="bytes") as under_way:
            self._stages.setdefault(capture.id, []).append(under_way)
            try:
                await future
            finally:
                self._stages.pop(capture.id, None)

    def note(self, is_whole: Mapping[str, bool]) -> None:
        """Record of captures that are in the store whether their images are whole. Those with a damaged image are
        stored again, if they are on disk. Thread-safe.
        """
        with self._names.change(KIND) as change:
            for capture_id, whole in is_whole.items():
                standing = change.standing(capture_id)
                if standing.image is not None and standing.durable != whole:
                    change.set_standing(capture_id, msgspec.structs.replace(standing, durable=whole))
        self.later()

    def progress(self) -> Progress | None:
        """The progress of the job that stores captures; None if none runs. `bytes`: of the present capture."""
        job = self._jobs.running(KIND)
        return job.facts(whole=False).progress if job is not None else None

    def retry(self) -> None:
        """Store now what could not be stored."""
        self._failed_at.clear()
        self._begin()

    def close(self) -> None:
        """Stop. The next daemon stores the captures that are not stored yet."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._captures.images.workers.close()

    def _schedule(self) -> None:
        if self._is_closed:
            return
        now = self._loop.time()
        if self._timer is None:
            self._first_due = now + LONGEST_S
        else:
            self._timer.cancel()
        self._timer = self._loop.call_at(min(now + QUIET_S, self._first_due), self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self._jobs.start(KIND, self._work)
        except StateConflict:  # it runs already, and will see what is new, unless it is about to end
            if self._waiting:
                self._loop.call_later(_BEGIN_AGAIN_S, self._begin)

    async def _work(self, job: Job) -> dict[str, int]:
        """The job: store captures until none is left. Returns how many, and how many bytes the store has grown by. If
        some could not be stored, raises the first of their errors at the end.
        """
        count = new_bytes = 0
        failed: list[WaypointError] = []
        called = self._loop.time()
        try:
            while not self._is_closed:
                awaited = next(iter(self._waiting), None)
                capture = await asyncio.to_thread(self._find, awaited)
                if capture is not None:
                    try:
                        new_bytes += await self._store_one(capture, job)
                        count += 1
                        job.report(items=count)
                    except WaypointError as error:
                        failed.append(error)
                    if self._loop.time() > called + LONGEST_S:
                        called = self._loop.time()
                        await self._on_stored()
                elif awaited is not None:
                    self._answer(awaited, _not_stored(awaited, "it has been removed"))
                elif not self._waiting:
                    await self._on_stored()
                    if not self._waiting:
                        break
        finally:
            for capture_id in list(self._waiting):
                self._answer(capture_id, _not_stored(capture_id, "the job that stores it has ended"))
        if failed and not self._is_closed:
            raise failed[0]
        return {"captures": count, "new_bytes": new_bytes}

    async def _store_one(self, capture: Capture, job: Job) -> int:
        """Store a capture in a thread, and answer the requests that wait for it. Returns the bytes that were added.
        Raises WaypointError for any failure, also a bug.
        """
        thread = asyncio.ensure_future(asyncio.to_thread(self._store, capture, job))
        try:
            new_bytes = await asyncio.shield(thread)
        except asyncio.CancelledError:
            await asyncio.wait([thread])
            raise
        except Exception as error:
            problem = self._note_failure(capture, error)
            self._answer(capture.id, problem)
            raise problem from None
        self._answer(capture.id, None)
        return new_bytes

    def _note_failure(self, capture: Capture, error: Exception) -> WaypointError:
        problem = as_problem(error, f"capture {capture.id[:12]}")
        self._failed_at[capture.id] = time.monotonic()
        if not self._is_closed:
            log.warning("capture %s is not stored: %s", capture.id[:12], str(problem).replace("\n", ";"))
        return problem

    def due(self) -> list[Capture]:
        """The captures, bases too, that a name stands for and that are not stored yet, the oldest first. Blocks."""
        return list(self._names.captures_of(list(self._due()), may_lack=True).values())

    def store_now(self, capture: Capture) -> bool:
        """Store a capture that is on disk, whether or not it has a name. Returns whether it is durable; False without a
        try if one has failed in the last AGAIN_S, or while the store is locked. Blocks; not for the event loop.
        """
        if time.monotonic() < self._failed_at.get(capture.id, float("-inf")) + AGAIN_S:
            return False
        if self._is_closed or self._captures.images.keys.problem() is not None:
            return False
        try:
            self._store(capture)
        except Exception as error:
            self._note_failure(capture, error)
            return False
        return True

    def _answer(self, capture_id: str, error: WaypointError | None) -> None:
        for future in self._waiting.pop(capture_id, []):
            if future.done():  # its client has gone
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _find(self, awaited: str | None) -> Capture | None:
        """The capture to be stored next: the awaited one, or the oldest that is due."""
        wanted = awaited if awaited is not None else next(self._due(), None)
        return self._names.captures_of([wanted], may_lack=True).get(wanted) if wanted is not None else None

    def _due(self) -> Iterator[str]:
        """The ids of the captures that are to be stored, the oldest first."""
        if self._captures.images.keys.problem() is not None:
            return
        wanted = {ref.capture for refs in self._names.iter_refs() for ref in refs.values() if ref.capture}
        wanted |= {base.capture for base in self._names.bases().values()}
        since = time.monotonic() - AGAIN_S
        wanted -= self._names.removed() | {one for one, at in self._failed_at.items() if at > since}
        standings = self._names.standings(list(wanted))
        wanted = {one for one, standing in standings.items() if not standing.durable}
        found = self._names.captures_of(list(wanted), may_lack=True).values()
        for capture in sorted(found, key=lambda capture: capture.created):
            images = self._captures.images
            if (standings[capture.id].image is None or images.is_hot(capture)) and not images.is_lost(capture):
                yield capture.id

    def _store(self, capture: Capture, job: Job | None = None) -> int:
        """Store one capture, and record that. Returns by how many bytes the store has grown. `job`: gets the
        progress.
        """
        with self.lock:
            standing = self._names.standing(capture.id)
            if standing.durable:
                return 0

            def report(done: int, total: int | None) -> None:
                if job is not None:
                    job.report(bytes=done, bytes_total=total)
                for one in self._stages.get(capture.id, ()):
                    one.report(done, total)

            found = self._captures.ingest(capture, report)
            with self._names.change(KIND) as change:
                standing = change.standing(capture.id)
                change.set_standing(capture.id, msgspec.structs.replace(standing, image=found.image, durable=True))
        log.info(
            "capture %s is image %s: %d bytes read, %d new, %.0f ms",
            *(capture.id[:12], found.image[:12], found.content_bytes, found.new_bytes, found.ms),
        )
        return found.new_bytes


def _not_stored(capture_id: str, said: str) -> Failed:
    return Failed("store", f"capture {capture_id[:12]}", said, "try again")
