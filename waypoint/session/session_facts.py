"""Facts about sessions and branches, for answers to clients."""

import asyncio
import bisect
import dataclasses
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from waypoint.capture.layers.shell import NOT_WRITTEN
from waypoint.launch.ground import start_plan
from waypoint.linux.tasks import cgroups, procfs
from waypoint.model.conditions import degradation, facts_of
from waypoint.model.errors import WaypointError
from waypoint.model.names import in_order
from waypoint.model.records import Capture, SessionLimits, Setting, User
from waypoint.model.session_facts import BelowFacts, LimitFacts, SessionFacts
from waypoint.model.times import iso_time
from waypoint.records.names import Names
from waypoint.session.birth.rights import MaySee
from waypoint.session.live.session import Figures, LiveSession
from waypoint.session.parked import ends_at
from waypoint.session.ports import published_facts
from waypoint.session.registry import Registry, Unreachable
from waypoint.upper.contract import Pool

_PARKED_BY: Mapping[str, Literal["idle", "ttl"]] = {"idle": "idle", "expired": "ttl"}
PATIENCE_S = 1.0
"""How long an answer waits for the figures of a session."""
_WALK_S = 30.0  # how long the walk over the files may take
_REST = 20
_WALKS = ThreadPoolExecutor(8, "measure")  # of its own, so that slow walks leave the shared threads to others


async def of_live(live: LiveSession, pool: Pool, sees: MaySee) -> SessionFacts:
    """Return the facts about a live session that the caller may see.

    This walks over the session's files and processes. Concurrent callers share one walk. A session may make the walk
    take seconds, so an answer waits PATIENCE_S for it: then the figures are missing, with the condition `not-measured`.
    The walk goes on. After a long walk its figures are returned until twenty times its duration has passed.
    """
    walk = live.measuring
    if walk is None or (walk.done() and time.monotonic() >= live.measured_until):
        walk = live.measuring = asyncio.ensure_future(_measure(live, pool))
        walk.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # perhaps nobody waits any more
    await asyncio.wait([walk], timeout=PATIENCE_S)
    facts = dataclasses.replace(
        _in_sight(of_start(live), live.record.row.setting.user, sees),
        uptime_s=round(time.time() - live.record.row.started, 3),
    )
    why = f"it takes longer than {PATIENCE_S:g} s"
    if walk.done():
        found = walk.result()
        why = found.why
        facts = dataclasses.replace(
            facts,
            memory_bytes=found.memory_bytes,
            resident_bytes=found.resident_bytes,
            shared_bytes=found.resident_bytes - found.own_bytes,
            own_bytes=found.own_bytes,
            processes=found.processes,
            upper_bytes=found.upper_bytes,
        )
    lacking = facts_of([degradation("not-measured", detail=why)] if why else [])
    return dataclasses.replace(facts, degraded=[*(facts.degraded or []), *lacking] or None)


def _in_sight(facts: SessionFacts, owner: User, sees: MaySee) -> SessionFacts:
    """Return `facts` about a session of `owner`, without its programs and folders if the caller may not see them."""
    if sees(owner):
        return facts
    return dataclasses.replace(
        facts, cwd=None, shared=None, shell=None, respawned=None, offered=None, lost=None, degraded=None, message=None
    )


async def _measure(live: LiveSession, pool: Pool) -> Figures:
    begun = time.monotonic()
    loop = asyncio.get_running_loop()
    memory, found, processes = await loop.run_in_executor(_WALKS, _measure_processes, live)
    upper, why = None, ""
    try:
        upper = await loop.run_in_executor(_WALKS, pool.usage, live.record.row.tree, _WALK_S)
    except WaypointError as error:
        why = error.said if live.ending is None else ""  # the tree of an ending session may be gone
    ended = time.monotonic()
    live.measured_until = ended + (_REST * (ended - begun) if ended - begun > PATIENCE_S else 0)
    return Figures(memory, found.all, found.own, processes, upper, why)


async def of_all(sessions: Registry, sees: MaySee, *, all_branches: bool) -> Iterator[list[SessionFacts]]:
    """Return the facts about all live sessions, sorted by branch; with `all_branches` also about branches that can be
    started again. The result is an iterator over pages; each step may read from the store, and so blocks.
    """
    asked, names = sessions.live, sessions.resources.names
    found = await asyncio.gather(*(of_live(live, sessions.resources.pool, sees) for live in asked))
    # Some sessions may have ended while the facts were collected.
    rows = [row for live, row in zip(asked, found, strict=True) if sessions.find(live.branch) is live]
    lost = list(sessions.unreachable.values())
    rows += await asyncio.to_thread(
        lambda: [_in_sight(of_unreachable(one), one.row.setting.user, sees) for one in lost]
    )
    rows.sort(key=_by_branch)
    if not all_branches:
        return iter([rows])
    return _merged(rows, _iter_ended(names, sessions.running, sees))


def _merged(rows: list[SessionFacts], pages: Iterator[list[SessionFacts]]) -> Iterator[list[SessionFacts]]:
    """Yield the pages with `rows` inserted, sorted by branch. `rows` and the pages are sorted by branch."""
    left = deque(rows)
    for page in pages:
        while left and page and _by_branch(left[0]) < _by_branch(page[-1]):
            bisect.insort(page, left.popleft(), key=_by_branch)
        yield page
    yield list(left)


def _by_branch(row: SessionFacts) -> str:
    return in_order(row.branch)


def _iter_ended(names: Names, live: set[str], sees: MaySee) -> Iterator[list[SessionFacts]]:
    for refs in names.iter_refs():
        ended = {name: ref for name, ref in refs.items() if ref.kind == "branch" and name not in live}
        yield [
            _in_sight(of_capture(name, ended[name].created, tip), tip.setting.user, sees)
            for name, tip in names.tips_of(ended).items()
        ]


def _measure_processes(live: LiveSession) -> tuple[int, procfs.Resident, int]:
    """Return the memory in bytes, the resident memory of all processes, and their number. Without the memory controller
    of cgroups the memory is the sum of the processes' proportional shares (PSS).
    """
    charged, pids = cgroups.memory_bytes(live.record.cgroup), live.processes()
    of_each = [procfs.resident(pid) for pid in pids]
    total = procfs.Resident(*(sum(one) for one in zip(*of_each, strict=True))) if of_each else procfs.Resident(0, 0, 0)
    return total.share if charged is None else charged, total, len(pids)


def of_capture(branch: str, created: float, tip: Capture) -> SessionFacts:
    """Return the facts about a branch without a live session. `created`: when the branch was made, seconds since the
    epoch.
    """
    return SessionFacts(
        branch=branch,
        state=_state_of(tip),
        created=iso_time(created),
        user=tip.setting.user.name,
        base=of_base(tip.setting),
        net=tip.setting.net,
        cwd=tip.setting.cwd,
        capture=tip.id,
        ends_in_s=_left_s(tip.setting) if tip.reason == "idle" else None,
        parked_by=_PARKED_BY.get(tip.reason),
        captured=iso_time(tip.created),
        message=tip.message or None,
    )


def of_base(setting: Setting) -> BelowFacts:
    """The facts about the files below a session."""
    if setting.pinned is not None:
        return BelowFacts(kind="pinned", name=setting.base_name, id=setting.pinned)
    return BelowFacts(kind="machine") if setting.base == "/" else BelowFacts(kind="folder", path=setting.base)


def _left_s(setting: Setting) -> float | None:
    end = ends_at(setting)
    return None if end is None else round(max(0.0, end - time.time()), 3)


def _state_of(tip: Capture) -> Literal["parked", "ended", "lost"]:
    if tip.reason == "lost":
        return "lost"
    return "ended" if tip.tier == "files" and tip.reason not in _PARKED_BY else "parked"


def of_limits(limits: SessionLimits) -> LimitFacts:
    return {"memory_bytes": limits.memory, "cpus": limits.cpus, "pids": limits.pids, "disk_bytes": limits.disk}


def of_unreachable(lost: Unreachable) -> SessionFacts:
    row = lost.row
    return SessionFacts(
        branch=row.branch,
        state="unreachable",
        created=iso_time(row.started),
        id=row.session,
        uptime_s=round(time.time() - row.started, 3),
        user=row.setting.user.name,
        base=of_base(row.setting),
        net=row.setting.net,
        cwd=row.setting.cwd,
        memory_bytes=cgroups.memory_bytes(lost.cgroup),
        processes=len(cgroups.members(lost.cgroup)),
        said=lost.said,
    )


def of_start(live: LiveSession) -> SessionFacts:
    """Return the facts about a live session that need no walk over files."""
    row = live.record.row
    unwritten = [NOT_WRITTEN] if live.shell.watch.is_state_lost else []
    return SessionFacts(
        branch=row.branch,
        state="live",
        created=iso_time(row.started),
        id=row.session,
        pid=live.record.init_pid,
        user=row.setting.user.name,
        base=of_base(row.setting),
        net=row.setting.net,
        allow_net=row.setting.allow_net or None,
        no_way_out=live.no_way_out() or None,
        cwd=row.setting.cwd,
        attached=live.attached,
        left_out=facts_of(live.record.left_out),
        shared=[bind.target for bind in row.setting.binds],
        ids="shifted" if live.record.ids.is_shifted else "host",
        why_host_ids=live.record.why_host_ids or None,
        seccomp=live.record.seccomp,
        why_no_seccomp=live.record.why_no_seccomp or None,
        limits=of_limits(live.record.limits),
        unlimited=facts_of(live.record.unlimited),
        respawned=live.restarted.respawned if live.restarted else None,
        offered=live.restarted.offered if live.restarted else None,
        lost=facts_of(live.restarted.lost) if live.restarted else None,
        degraded=facts_of([*live.record.lowered, *live.not_back, *unwritten, *live.moved_ports]) or None,
        ports=published_facts(live) or None,
        parks_in_s=None if (left := live.parks_in_s()) is None else round(left, 3),
        ends_in_s=_left_s(row.setting),
        shell=live.shell_path,
        hooks=start_plan.has_hooks(live.shell_path),
    )
