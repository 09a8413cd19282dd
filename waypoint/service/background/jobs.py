"""Jobs: work that goes on without a client that waits for the answer. Clients watch a job, cancel it, and fetch its
result later.

Jobs live in the daemon's memory and end with it.
"""

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from waypoint.model.activity import JobEvent, JobFacts, JobState, Progress
from waypoint.model.errors import StateConflict, UnknownName, WaypointError
from waypoint.model.ids import random_hex
from waypoint.model.times import iso_time
from waypoint.service.background.bugs import as_problem
from waypoint.service.background.events import Events
from waypoint.store import callers

# How many jobs that have ended are kept with their results, and for how many seconds.
KEPT = 64
KEPT_S = 3600.0
# Seconds between two events about one job's progress, at least.
PROGRESS_S = 0.1
# Seconds that a request to cancel waits for the job's end.
CANCEL_S = 10.0


class Job:
    """One job. Its work calls `report`; all else is for `Jobs`. `caller`: who has started it; None: the daemon."""

    def __init__(self, kind: str, events: Events, loop: asyncio.AbstractEventLoop, *, is_unasked: bool) -> None:
        self.id = random_hex(8)
        self.kind = kind
        self.is_unasked = is_unasked
        self.caller = None if is_unasked else callers.current()
        self.state: JobState = "running"
        self.ended_at: float | None = None
        self._started_at = time.time()
        self._progress = Progress()
        self._result: Any = None
        self._error: WaypointError | None = None
        self._events = events
        self._loop = loop
        self._lock = threading.Lock()
        self._is_due = False  # an event about the progress is on its way
        self._told_at = float("-inf")  # when the last such event was, by the loop's clock

    def report(self, **numbers: int) -> None:
        """Set fields of Progress. Any thread may call this; an event tells of the change within PROGRESS_S."""
        with self._lock:
            self._progress = msgspec.structs.replace(self._progress, **numbers)
            if self._is_due:
                return
            self._is_due = True
        self._loop.call_soon_threadsafe(self._tell_soon)

    def facts(self, *, whole: bool) -> JobFacts:
        """`whole`: with the result."""
        return JobFacts(
            id=self.id,
            kind=self.kind,
            state=self.state,
            started=iso_time(self._started_at),
            ended=None if self.ended_at is None else iso_time(self.ended_at),
            progress=self._progress,
            result=self._result if whole else None,
            error=self._error.to_json() if self._error else None,
        )

    def tell(self, change: str) -> None:
        self._events.publish(JobEvent, change=change, job=self.facts(whole=False))

    def conclude(self, task: asyncio.Task[Any]) -> None:
        """`task` has ended, and the job with it."""
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            self.state = "cancelled"
        elif isinstance(error, Exception):
            self.state = "failed"
            self._error = as_problem(error, f"the job {self.kind}")
        else:
            self.state = "done"
            self._result = task.result()
        self.ended_at = time.time()
        self.tell("ended")

    def _tell_soon(self) -> None:
        wait_s = self._told_at + PROGRESS_S - self._loop.time()
        self._loop.call_later(max(0.0, wait_s), self._tell_progress)

    def _tell_progress(self) -> None:
        with self._lock:
            self._is_due = False
        self._told_at = self._loop.time()
        if self.state == "running":  # else the event of the job's end has told the progress, too
            self.tell("progress")


Work = Callable[[Job], Awaitable[object]]
"""What a job does, in a task of its own, which is cancelled with the job; gives the result, which JSON can hold.

When it is cancelled it must end what it has started, threads and processes too, before it lets the cancellation pass.
"""


async def _carry_out(work: Work, job: Job) -> object:
    return await work(job)


class Jobs:
    """All jobs of a daemon. Lives in its event loop."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._jobs: dict[str, Job] = {}  # in the order of their start
        self._tasks: dict[str, asyncio.Task[object]] = {}  # of those that run

    def start(self, kind: str, work: Work, *, is_unasked: bool = False) -> Job:
        """Begin a job; returns at once. `is_unasked`: the daemon does it by itself. Raises StateConflict if a job of
        this kind runs: so there are never more jobs, with their threads and processes, than kinds.
        """
        self._forget_old()
        running = self.running(kind)
        if running is not None:
            next_step = "'waypoint events' shows when it has ended; try again then"
            said = f"one is under way: the job {running.id} of this kind runs already"
            raise StateConflict("start", f"a job of the kind {kind}", said, next_step)
        loop = asyncio.get_running_loop()
        job = Job(kind, self._events, loop, is_unasked=is_unasked)
        self._jobs[job.id] = job
        job.tell("started")
        task = self._tasks[job.id] = loop.create_task(_carry_out(work, job))
        # Not in a `finally` of the task: a task that is cancelled before its first step never enters its `try`.
        task.add_done_callback(functools.partial(self._conclude, job))
        return job

    def running(self, kind: str) -> Job | None:
        """The job of this kind that runs."""
        return next((self._jobs[job_id] for job_id in self._tasks if self._jobs[job_id].kind == kind), None)

    async def result(self, job: Job) -> object:
        """Wait for the end of a running job, and return its result. Raises what the job has raised, StateConflict if
        the job was cancelled. If the caller is cancelled, the job runs on.
        """
        task = self._tasks[job.id]
        await asyncio.wait([task])
        if task.cancelled():
            raise StateConflict("wait for", f"the job {job.id} ({job.kind})", "it was cancelled", "start it again")
        return task.result()

    def all(self) -> list[Job]:
        """The jobs that run, and the ended ones that are kept, in the order of their start."""
        self._forget_old()
        return list(self._jobs.values())

    def get(self, job_id: str) -> Job:
        """Raises UnknownName."""
        self._forget_old()
        if job_id not in self._jobs:
            said = f"there is none; jobs end with their daemon, and results are kept for {KEPT_S / 60:.0f} minutes"
            raise UnknownName("find", f"job {job_id}", said, "'GET /v1/jobs' lists what there is; start the job again")
        return self._jobs[job_id]

    async def cancel(self, job_id: str) -> Job:
        """End a job, and wait for its end, at most CANCEL_S: after that the job is still `running`, and ends later.
        A job that has ended stays as it is. Raises UnknownName.
        """
        job = self.get(job_id)
        task = self._tasks.get(job_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_S)
        return job

    async def close(self) -> None:
        """Cancel all that run and wait for their end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _conclude(self, job: Job, task: asyncio.Task[object]) -> None:
        del self._tasks[job.id]
        job.conclude(task)

    def _forget_old(self) -> None:
        ended = [job for job in self._jobs.values() if job.ended_at is not None]
        oldest = time.time() - KEPT_S
        ended.sort(key=lambda job: job.ended_at or 0.0)
        for number, job in enumerate(ended, 1):
            if len(ended) - number >= KEPT or (job.ended_at or 0.0) < oldest:
                del self._jobs[job.id]
