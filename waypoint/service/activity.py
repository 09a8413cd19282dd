"""Requests about jobs and events, and the job `doctor`."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

from waypoint.capture.storing.keys import STAYS_PLAIN
from waypoint.linux.calls import abilities
from waypoint.linux.tasks.stages import stage
from waypoint.model.activity import AnyEvent, EventsQuery, JobFacts, JobRequest
from waypoint.model.conditions import text_of
from waypoint.model.errors import NotAllowed, WaypointError
from waypoint.model.facts import GcFacts
from waypoint.model.paths import SET_UP_BY_ROOT, spelled
from waypoint.model.profile_facts import ProfileFacts
from waypoint.model.session_facts import Capability
from waypoint.model.stages import Stage
from waypoint.model.users import group_name, user_name
from waypoint.processes.profiles import BUILT_IN
from waypoint.service.background.jobs import Job
from waypoint.service.home import Home
from waypoint.service.housekeeping import gc_job
from waypoint.service.shapes import Download
from waypoint.session.birth import rights
from waypoint.setup.rows import CRIU, WITHOUT_ROOT, fails
from waypoint.upper.contract import NEXT_STEPS, Outlook, Pool, mib

WANTED = "config.json wants that"
POOL = "the pool of this home"

# Trials have threads of their own: each blocks for seconds, and the shared threads are needed for captures and
# restores.
_TRIALS = ThreadPoolExecutor(2, "trial")


async def events(home: Home, query: EventsQuery) -> Annotated[Download, AnyEvent]:
    """Return the kept events after the one that `query` names, as lines of JSON."""
    return Download("application/x-ndjson", home.events.lines(query), endless=query.follow)


async def jobs(home: Home) -> list[JobFacts]:
    """Return the running and the recently ended jobs, without their results."""
    return [job.facts(whole=False) for job in home.jobs.all()]


async def job(home: Home, job: str) -> JobFacts:
    return home.jobs.get(job).facts(whole=True)


async def start_job(home: Home, request: JobRequest) -> JobFacts:
    """Begin a job, which continues when the client has gone. Raises StateConflict if a job of this kind runs."""
    work = KINDS[request.kind]
    return home.jobs.start(request.kind, lambda job: work(home, job)).facts(whole=False)


async def cancel_job(home: Home, job: str) -> JobFacts:
    """Cancel a job, and wait a few seconds for its end; the answer may say that the job still runs. Raises NotAllowed
    for a job of another user, or of the daemon itself, unless the caller may use all of the home.
    """
    owner = home.jobs.get(job).owner
    if not rights.may_use(home.sessions.resources, owner):
        said, next_step = f"{user_name(owner)} has started it", f"let {user_name(owner)} or root run the command"
        raise NotAllowed("cancel", f"job {job}", said, next_step)
    return (await home.jobs.cancel(job)).facts(whole=True)


async def doctor(home: Home) -> list[Capability]:
    """Try every capability of the machine on a throw-away session. Takes seconds, and longer while other trials run.

    A cancellation of the caller ends the processes of the trial first.
    """
    from waypoint.setup.trials import try_everything

    if not abilities.own().dumps:
        row = fails(CRIU, WITHOUT_ROOT, SET_UP_BY_ROOT)
        return [row, await asyncio.to_thread(_pool, home.pool), *await asyncio.to_thread(_rows_of_home, home)]
    started: list[subprocess.Popen[bytes]] = []
    is_cancelled = False

    def on_start(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        if is_cancelled:
            process.kill()

    work = _TRIALS.submit(try_everything, home.path, on_start=on_start)
    ended = asyncio.wrap_future(work)
    try:
        with stage(Stage.TRY):
            rows = await asyncio.shield(ended)
        return [*rows, await asyncio.to_thread(_pool, home.pool), *await asyncio.to_thread(_rows_of_home, home)]
    except asyncio.CancelledError:
        is_cancelled = True
        work.cancel()  # in case it still waits for a thread
        for process in started:
            process.kill()
        await asyncio.wait([ended])
        raise


async def profiles(home: Home) -> list[ProfileFacts]:
    """Return the workload profiles, by name, and the files of profiles that have errors."""
    return await asyncio.to_thread(home.captures.profiles.all)


def _pool(pool: Pool) -> Capability:
    """Return the row of the home's pool: whether it has free space and is undamaged."""
    try:
        pool.check_writable()
        state, why, remedy = _stand(pool.outlook())
    except WaypointError as error:
        state, why, remedy = "missing", error.said, error.next_step
    return Capability(name=POOL, state=state, why=why, remedy=remedy, required_for="session")


def _stand(found: Outlook) -> tuple[Literal["ok", "missing", "degraded"], str, str]:
    """The state of a pool, the reason and the remedy."""
    growth = found.growth_bytes or 0
    why = f"{mib(found.free_bytes)} are free"
    if found.growth_bytes is not None:
        why += f", the pool can grow by {mib(growth)} and leaves {mib(found.floor_bytes)} of the disk free"
        why += f" (the disk has {mib(found.disk_free_bytes)} free now)" if found.is_disk_low else ""
    if found.errors:
        said = f"the disk has failed {found.errors} reads, writes or checks; {why}"
        return "degraded", said, NEXT_STEPS[errno.EIO]
    if found.is_short:
        return "degraded", f"it is nearly full: {why}", NEXT_STEPS[errno.ENOSPC]
    return "ok", why, ""


def _rows_of_home(home: Home) -> list[Capability]:
    """The rows about what sessions of this home lack, and about its users. Blocks."""
    left_out = "; ".join(f"not in the session: {text_of(one)}" for one in home.left_out())
    has_all_ids = abilities.own().owners
    why_host_ids = home.why_host_ids() if has_all_ids else ""
    said = (
        f"root in a session is root of the machine; only the other limits isolate it: {why_host_ids}"
        if why_host_ids
        else ""
    )
    return [
        _row(
            "mounts of this machine",
            left_out,
            "waypoint shell --bind HOST:PATH shares a folder of such a mount with the session",
        ),
        _row(
            "user ids of sessions",
            said,
            "use Linux 6.3 or later, and file systems that support idmapped mounts",
            "" if has_all_ids else f"only that of {user_name(os.geteuid())}",
        ),
        _row(
            "limits of sessions",
            "; ".join(map(text_of, home.unlimited())),
            "use a machine with the cgroup2 controllers memory, pids and cpu" if has_all_ids else SET_UP_BY_ROOT,
        ),
        _row(
            "internet access of sessions",
            home.egress.why_not,
            "apt-get install passt nftables, then start the sessions again",
        ),
        _refusals(home),
        _users(home),
        _memory(home),
        _profiles(home),
        *_encryption(home),
    ]


def _row(name: str, problem: str, remedy: str, ok: str = "") -> Capability:
    """Return a row of `doctor`. `problem`: why the row is degraded; "": it is not. `ok`: the text of a row without a
    problem.
    """
    if not problem:
        return Capability(name=name, state="ok", why=ok)
    return Capability(name=name, state="degraded", why=problem, remedy=remedy)


def _refusals(home: Home) -> Capability:
    """Whether all live sessions have a filter of system calls, and which of them may make namespaces."""
    records = [live.record for live in home.sessions.live]
    without = [f"{one.row.branch} ({one.why_no_seccomp or WANTED})" for one in records if one.seccomp == "none"]
    allowed = [one.row.branch for one in records if one.seccomp == "userns"]
    more = f"{', '.join(allowed)} may make namespaces and mounts (--allow userns)" if allowed else ""
    problem = "; ".join(filter(None, [f"no system call is refused in {', '.join(without)}", more])) if without else ""
    ok = more or "namespaces and mounts are refused; a sandbox within a session needs --allow userns"
    return _row("system calls of sessions", problem, "capture these sessions, and start new ones from their files", ok)


def _users(home: Home) -> Capability:
    """Which users besides root have rights in this home."""
    users = home.users
    if not abilities.own().owners:
        return _row("other users", "", "", f"nobody but {user_name(os.geteuid())}")
    others = [user_name(users.owner_uid)] if users.owner_uid else []
    others += [f"group {group_name(users.group_gid)}"] if users.group_gid is not None else []
    trusted = user_name(users.trusted_uid) if users.trusted_uid is not None else ""
    return _row(
        "other users",
        f"{trusted} has full trust, and so the rights of root on this machine" if trusted else "",
        f"sudo {spelled(str(home.path), 'setup', '--user', trusted)} removes these rights",
        f"{' and '.join(others)}: only their own sessions and captures" if others else "nobody but root",
    )


def _memory(home: Home) -> Capability:
    """Whether captures are written to memory first, and then reach the disk."""
    found, stuck = home.captures.memory(), home.moving.problem
    name, ok = "captures in memory", f"{mib(found.used_bytes)} of {mib(found.size_bytes)} in use"
    if stuck is not None:
        said = f"they cannot be moved to the disk, and a reboot would end their processes: {stuck.said}"
        return _row(name, said, stuck.next_step)
    if not abilities.own().memory_area:
        return _row(name, "", "", "none: checkpoints keep no processes")
    if found.why_not and found.is_wanted:
        return _row(name, f"a checkpoint pauses its session for longer: {found.why_not}", "see 'waypoint daemon logs'")
    return _row(name, "", "", found.why_not or ok)


def _profiles(home: Home) -> Capability:
    """Whether all workload profiles can be used."""
    found = home.captures.profiles.all()
    problem = "; ".join(f"{one.where}: {one.problem}" for one in found if one.problem)
    own = [one.name for one in found if not one.problem and one.where != BUILT_IN]
    ok = f"of this home: {', '.join(own)}" if own else ""
    return _row("workload profiles", f"not used: {problem}" if problem else "", "correct the file, or remove it", ok)


def _encryption(home: Home) -> list[Capability]:
    """Whether the store of an encrypted home can be used, and what else in the home is not encrypted."""
    keys = home.captures.images.keys
    if keys.encryption is None:
        return []
    problem = keys.problem()
    ok = f"captures in the store; not encrypted: {STAYS_PLAIN}"
    if problem is None:
        return [_row("encryption", "", "", ok)]
    return [_row("encryption", f"captures are not stored: {problem.said}", problem.next_step, ok)]


async def _doctor_job(home: Home, job: Job) -> list[Capability]:
    rows = await doctor(home)
    job.report(items=len(rows), items_total=len(rows))
    return rows


async def _gc_job(home: Home, job: Job) -> GcFacts:
    return await gc_job(home, job, home.keeping)


KINDS: dict[str, Callable[[Home, Job], Awaitable[object]]] = {"doctor": _doctor_job, "gc": _gc_job}
"""The work of each kind of job, by the kinds of JobRequest."""
