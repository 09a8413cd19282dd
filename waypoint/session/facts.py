"""What is told about sessions and branches."""

import asyncio
import time
from datetime import UTC, datetime

from waypoint.linux import cgroups, procfs
from waypoint.model.errors import WaypointError
from waypoint.model.records import Capture
from waypoint.model.requests import SessionFacts
from waypoint.session.live import LiveSession
from waypoint.upper.contract import Pool


async def of_live(live: LiveSession, pool: Pool) -> SessionFacts:
    """Costs a walk over the session's upper tree, in a thread."""
    row = live.record.row
    upper = None
    try:
        upper = await asyncio.to_thread(pool.usage, row.tree)
    except WaypointError:
        if live.ending is None:  # else its tree may be gone
            raise
    return SessionFacts(
        branch=row.branch,
        state="live",
        created=iso_time(row.started),
        id=row.session,
        pid=live.record.init_pid,
        uptime_s=round(time.time() - row.started, 3),
        user=row.setting.user.name,
        base=row.setting.base,
        net=row.setting.net,
        cwd=row.setting.cwd,
        memory_bytes=_memory_bytes(live),
        processes=len(live.processes()),
        upper_bytes=upper,
        attached=live.attached,
        left_out=live.record.left_out,
    )


def _memory_bytes(live: LiveSession) -> int:
    """What the memory controller says where it is in cgroup2, else the processes' shares (PSS) added up."""
    charged = cgroups.memory_bytes(live.record.cgroup)
    return sum(procfs.share_bytes(pid) for pid in live.processes()) if charged is None else charged


def of_capture(branch: str, created: float, tip: Capture) -> SessionFacts:
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


def iso_time(seconds: float) -> str:
    """UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def of_start(live: LiveSession) -> SessionFacts:
    """What the start of a session answers: all that costs no walk."""
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
    )
