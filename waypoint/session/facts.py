"""Facts about sessions and branches, as the control interface answers them."""

import asyncio
import dataclasses
import heapq
import itertools
import time
from collections.abc import Callable, Iterator

from waypoint.launch.ground import start_plan
from waypoint.linux.tasks import cgroups, procfs
from waypoint.model.errors import WaypointError
from waypoint.model.facts import SessionFacts
from waypoint.model.records import Capture
from waypoint.model.times import iso_time
from waypoint.session.live.session import LiveSession
from waypoint.session.registry import Registry
from waypoint.store.names import Names
from waypoint.upper.contract import Pool


async def of_live(live: LiveSession, pool: Pool) -> SessionFacts:
    """All facts about a live session. Walks over the session's upper tree and its processes, in a thread. Raises
    WaypointError.
    """
    row = live.record.row
    memory, processes = await asyncio.to_thread(_measure_processes, live)
    upper = None
    try:
        upper = await asyncio.to_thread(pool.usage, row.tree)
    except WaypointError:
        if live.ending is None:  # the tree of an ending session may be gone: its size is then unknown
            raise
    return dataclasses.replace(
        of_start(live),
        uptime_s=round(time.time() - row.started, 3),
        memory_bytes=memory,
        processes=processes,
        upper_bytes=upper,
    )


async def of_all(sessions: Registry, *, all_branches: bool) -> Iterator[SessionFacts]:
    """The facts about all live sessions, sorted by branch; with `all_branches` also about branches that can be started
    again. The iterator of those blocks, since each step may read from the store; it is for use in one thread.
    """
    asked, names = sessions.live, sessions.resources.names
    found = await asyncio.gather(*(of_live(live, sessions.resources.pool) for live in asked))
    # Some sessions may have ended while the facts were collected.
    rows = [row for live, row in zip(asked, found, strict=True) if sessions.find(live.branch) is live]
    rows.sort(key=lambda row: row.branch)
    if not all_branches:
        return iter(rows)
    live = {session.branch for session in sessions.live}
    ended = _iter_ended(names, live, sessions.resources.captures.quiet.wait)
    return heapq.merge(rows, itertools.chain.from_iterable(ended), key=lambda row: row.branch)


def _iter_ended(names: Names, live: set[str], between: Callable[[], None]) -> Iterator[list[SessionFacts]]:
    """The facts about all branches that have a capture and are not among `live`, sorted by branch. Calls `between`
    before each list of them.
    """
    for refs in names.iter_refs():
        between()
        ended = [
            (name, ref.created, ref.capture)
            for name, ref in refs.items()
            if ref.kind == "branch" and ref.capture and name not in live
        ]
        tips = names.captures_of([tip for _, _, tip in ended])
        yield [of_capture(name, created, tips[tip]) for name, created, tip in ended]


def _measure_processes(live: LiveSession) -> tuple[int, int]:
    """The session's memory in bytes, as cgroup2's memory controller accounts it, else the sum of the processes' shares
    (PSS), which takes milliseconds for each GiB; and the number of its processes.
    """
    charged, pids = cgroups.memory_bytes(live.record.cgroup), live.processes()
    return sum(map(procfs.share_bytes, pids)) if charged is None else charged, len(pids)


def of_capture(branch: str, created: float, tip: Capture) -> SessionFacts:
    """The facts about a branch without a live session. `created`: when the branch was made, seconds since the epoch."""
    return SessionFacts(
        branch=branch,
        state="lost" if tip.reason == "lost" else "ended",
        created=iso_time(created),
        user=tip.setting.user.name,
        base=tip.setting.base,
        net=tip.setting.net,
        cwd=tip.setting.cwd,
        capture=tip.id,
    )


def of_start(live: LiveSession) -> SessionFacts:
    """The facts that the start of a session answers: those that need no walk over files."""
    row = live.record.row
    return SessionFacts(
        branch=row.branch,
        state="live",
        created=iso_time(row.started),
        id=row.session,
        pid=live.record.init_pid,
        user=row.setting.user.name,
        base=row.setting.base,
        net=row.setting.net,
        cwd=row.setting.cwd,
        attached=live.attached,
        left_out=live.record.left_out,
        shared=[bind.target for bind in row.setting.binds],
        shell=None if row.setting.command else start_plan.shell_argv(row.setting)[0][0],
        hooks=start_plan.has_hooks(row.setting),
    )
