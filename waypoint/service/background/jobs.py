"""Jobs: work in the background. Clients watch a job, cancel it, and fetch its result later.

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
from waypoint.records import callers
from waypoint.service.background.bugs import as_problem
from waypoint.service.background.events import Events

KEPT, KEPT_S = 64, 3600.0  # ended jobs whose results are kept, and for how many seconds
PROGRESS_S = 0.1  # least seconds between two progress events of a job
CANCEL_S = 10.0  # seconds that a request to cancel waits for the job's end


class Job:
    """One job. Its work calls `report`; everything else is for `Jobs`."""

    def __init__(self, kind: str, events: Events, loop: asyncio.AbstractEventLoop) -> None:
        self.id = random_hex(8)
        self.kind = kind
        caller = callers.current()
        self.owner = (caller.uid if caller is not None else None) or 0  # the uid of the user who has started the job
        self.state: JobState = "running"
        self.ended_at: float | None = None
        self._started_at = time.time()
        self._progress = Progress()
        self._result: Any = None
        self._error: WaypointError | None = None
        self._events = events
        self._loop = loop
        self._lock = threading.Lock()
        self._is_due = False  # a progress event is scheduled
        self._told_at = float("-inf")  # time of the last progress event, by the loop's clock

    def report(self, **numbers: int | None) -> None:
        """Set fields of Progress; an event follows within PROGRESS_S. Any thread may call this."""
        with self._lock:
            self._progress = msgspec.structs.replace(self._progress, **numbers)
            if self._is_due:
                return
            self._is_due = True
        self._loop.call_soon_threadsafe(self._tell_soon)

    def facts(self, *, whole: bool) -> JobFacts:
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
        if self.state == "running":  # else the event of the job's end had the progress
            self.tell("progress")


Work = Callable[[Job], Awaitable[object]]
"""The work of a job: runs as a task and returns the result, for JSON.

When cancelled, it must end its threads and processes before it lets CancelledError pass.
"""


async def _run(work: Work, job: Job) -> object:
    return await work(job)


class Jobs:
    def __init__(self, events: Events) -> None:
        self._events = events
        self._jobs: dict[str, Job] = {}  # in the order of their start
        self._tasks: dict[str, asyncio.Task[object]] = {}  # the tasks of the running jobs, by job id

    def start(self, kind: str, work: Work) -> Job:
        """Begin a job; returns at once. Raises StateConflict if a job of this kind runs."""
        self._forget_old()
        running = self.running(kind)
        if running is not None:
            next_step = "'waypoint events' shows when it has ended; try again then"
            raise StateConflict(
                "start", f"a {kind} job", f"the job {running.id} of this kind is already running", next_step
            )
        loop = asyncio.get_running_loop()
        job = Job(kind, self._events, loop)
        self._jobs[job.id] = job
        job.tell("started")
        task = self._tasks[job.id] = loop.create_task(_run(work, job))
        # Not a `finally` in the task: a task that is cancelled before its first step never enters its `try`.
        task.add_done_callback(functools.partial(self._conclude, job))
        return job

    def running(self, kind: str) -> Job | None:
        return next((self._jobs[job_id] for job_id in self._tasks if self._jobs[job_id].kind == kind), None)

    async def result(self, job: Job) -> object:
        """Wait for the end of a running job, and return its result or raise its exception; StateConflict if the job was
        cancelled. If the caller is cancelled, the job continues.
        """
        task = self._tasks[job.id]
        await asyncio.wait([task])
        if task.cancelled():
            raise StateConflict("wait for", f"the job {job.id} ({job.kind})", "it was cancelled", "start it again")
        return task.result()

    async def ended(self, kind: str) -> None:
        """Wait for the end of the running job of this kind, if there is one."""
        job = self.running(kind)
        if job is not None:
            await asyncio.wait([self._tasks[job.id]])

    def all(self) -> list[Job]:
        """The running jobs and the ended ones that are kept, in the order of their start."""
        self._forget_old()
        return list(self._jobs.values())

    def get(self, job_id: str) -> Job:
        self._forget_old()
        if job_id not in self._jobs:
            said = (
                f"there is no such job; jobs end with their daemon, and results are kept for {KEPT_S / 60:.0f} minutes"
            )
            raise UnknownName("find", f"job {job_id}", said, "'GET /v1/jobs' lists all jobs; start the job again")
        return self._jobs[job_id]

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job, and wait for its end for at most CANCEL_S; after that its state may still be `running`. Does
        nothing if the job has ended. Raises UnknownName.
        """
        job = self.get(job_id)
        task = self._tasks.get(job_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_S)
        return job

    async def close(self) -> None:
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
