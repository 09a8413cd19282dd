"""What goes on: jobs, as clients start and watch them, and the stream of events."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

from waypoint.model.activity import AnyEvent, EventsQuery, JobFacts, JobRequest
from waypoint.model.facts import Capability, GcFacts
from waypoint.service.background.jobs import Job
from waypoint.service.home import Home
from waypoint.service.housekeeping import gc_job
from waypoint.service.shapes import Download

# Threads of their own: a trial blocks for seconds, and captures and restores need those that all share.
_TRIALS = ThreadPoolExecutor(2, "trial")


async def events(home: Home, query: EventsQuery) -> Annotated[Download, AnyEvent]:
    """What has happened since the event that `query` names, as far back as it is kept; one line of JSON each."""
    return Download("application/x-ndjson", home.events.lines(query), endless=query.follow)


async def jobs(home: Home) -> list[JobFacts]:
    """The jobs that run, and those that ended lately, without their results."""
    return [job.facts(whole=False) for job in home.jobs.all()]


async def job(home: Home, job: str) -> JobFacts:
    """One job, with its result. Raises UnknownName."""
    return home.jobs.get(job).facts(whole=True)


async def start_job(home: Home, request: JobRequest) -> JobFacts:
    """Begin a job; it goes on when the client has gone. Raises StateConflict if a job of this kind runs."""
    work = KINDS[request.kind]
    return home.jobs.start(request.kind, lambda job: work(home, job)).facts(whole=False)


async def cancel_job(home: Home, job: str) -> JobFacts:
    """End a job before its time, and wait for its end, but not for long: the answer may say that it still runs. One
    that has ended already stays as it is. Raises UnknownName.
    """
    return (await home.jobs.cancel(job)).facts(whole=True)


async def doctor(home: Home) -> list[Capability]:
    """Try every capability of the machine on a throw-away session; takes seconds, and more if others try it too.

    Cancelled, it ends the processes of the trial, and returns when nothing is left of them.
    """
    from waypoint.setup.trials import try_everything

    started: list[subprocess.Popen[bytes]] = []
    is_cancelled = False

    def on_start(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        if is_cancelled:
            process.kill()

    work = _TRIALS.submit(try_everything, home.path, on_start=on_start)
    ended = asyncio.wrap_future(work)
    try:
        return [*await asyncio.shield(ended), await asyncio.to_thread(_mounts, home)]
    except asyncio.CancelledError:
        is_cancelled = True
        work.cancel()  # it may still be waiting for a thread
        for process in started:
            process.kill()
        await asyncio.wait([ended])
        raise


def _mounts(home: Home) -> Capability:
    """Whether sessions have all that is mounted on the machine."""
    left_out = home.left_out()
    return Capability(
        name="what is mounted here",
        state="degraded" if left_out else "ok",
        why="".join(f"not in the session: {line}; " for line in left_out).rstrip("; "),
        remedy="waypoint shell --bind HOST:PATH shares a folder of it as it is" if left_out else "",
        required_for="optional",
    )


async def _doctor_job(home: Home, job: Job) -> list[Capability]:
    rows = await doctor(home)
    job.report(items=len(rows), items_total=len(rows))
    return rows


async def _gc_job(home: Home, job: Job) -> GcFacts:
    return await gc_job(home, job, home.keep_operations_s)


KINDS: dict[str, Callable[[Home, Job], Awaitable[object]]] = {"doctor": _doctor_job, "gc": _gc_job}
"""What each kind of job does; the names are those of JobRequest."""
