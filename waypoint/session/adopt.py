"""At its start the daemon adopts the sessions of the last daemon that live, and ends those whose processes died.

This runs once, before the daemon does anything else in the home. The functions block.
"""

import contextlib
import functools
import logging
import time
from pathlib import Path

from waypoint.capture.sweeping import Inventory, sweep
from waypoint.linux.tasks import cgroups, procfs
from waypoint.model.errors import Failed, StoreDamaged, WaypointError
from waypoint.model.ids import is_id
from waypoint.model.records import LiveRow
from waypoint.model.session_facts import StrangerFacts
from waypoint.processes import tcp_repair, terminal_queues
from waypoint.records.marks import has_mark
from waypoint.session.end import Sealed, end_unheld
from waypoint.session.live import record
from waypoint.session.live.record import RuntimeRecord
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.registry import Registry, Unreachable
from waypoint.session.rewind import finish_interrupted, is_under_way
from waypoint.session.views import sweep_views

log = logging.getLogger(__name__)

_STANDS = "; it is frozen until a daemon can finish the interrupted restore of its files"

IDLE_S = 7.0
"""A CRIU of the last daemon that uses no processor time for so many seconds hangs, and is killed."""
MOST_S = 40.0
"""A CRIU of the last daemon is killed after so many seconds in any case, because clients wait 60 s for a daemon."""


def adopt_all(sessions: Registry) -> list[StrangerFacts]:
    """Adopt the sessions that live, and end the others. Return the things in the home that names.db does not know."""
    resources = sessions.resources
    is_ours = has_mark(resources.places.sessions, resources.names.identity())
    leaving: list[LiveRow] = []
    for row in resources.names.live(ready=False):
        if row.leaves_to is not None:
            leaving.append(row)
        else:
            _end_unborn(resources, row, kill=is_ours)
    found = [(row, record.load(resources.places.sessions / row.session)) for row in resources.names.live()]
    for row, entry in found:  # before any slow work
        folder = resources.places.sessions / row.session
        if entry is not None and entry.is_alive() and not is_under_way(folder):
            _let_run(folder, entry)
    for row, entry in found:
        said = _take_over(sessions, row, entry)
        if said:
            log.error("cannot reach the session on %s, which is kept: %s", row.branch, said)
            sessions.unreachable[row.branch] = Unreachable(row, resources.places.cgroup_of(row.session), said)
    for row in leaving:
        _leave(sessions, row)
    strangers = _swept(resources)
    sweep_views(resources.places)
    return strangers


def _leave(sessions: Registry, row: LiveRow) -> None:
    """Begin to dump and end a session that was replaced by the last daemon, and is frozen."""
    resources = sessions.resources
    assert row.leaves_to is not None
    found = resources.names.captures_of([row.leaves_to], may_lack=True)
    for capture in found.values():
        resources.captures.await_dump(capture)
    sessions.endings.resume_leaving(row, record.load(resources.places.sessions / row.session))


def _take_over(sessions: Registry, row: LiveRow, entry: RuntimeRecord | None) -> str:
    """Adopt a session, or end it if its processes are gone. `entry`: its runtime record, or None. If the session runs
    but cannot be reached, return the reason, else "".
    """
    resources = sessions.resources
    group = resources.places.cgroup_of(row.session)
    if entry is None and cgroups.members(group):
        cgroups.thaw(group)
        return f"{resources.places.sessions / row.session / record.RECORD} is missing or damaged"
    if entry is not None and entry.is_alive():
        try:
            _adopt(sessions, entry)
        except OSError as error:
            if entry.is_alive():
                stands = is_under_way(resources.places.sessions / row.session)
                return f"{error}{_STANDS if stands else ''}"
        else:
            return ""
    _end_dead(resources, row, entry)
    return ""


def _swept(resources: Resources) -> list[StrangerFacts]:
    """Sweep the home (sweeping.py). Nothing is removed if the pool is read-only, or if a record is damaged, because the
    files that belong to that record are then unknown.
    """
    try:
        resources.pool.check_writable()
    except Failed as error:
        log.error("nothing is removed from this home: %s", error)
        return []
    try:
        return sweep(resources.names, inventories(resources))
    except StoreDamaged as error:
        log.error("nothing is removed from this home: %s", error)
        return []


def inventories(resources: Resources) -> list[Inventory]:
    """Return inventories of all things in the home. The processes of sessions come first, because their files may only
    be removed after them.
    """
    places, names = resources.places, resources.names
    rows = [*names.live(), *names.live(ready=False)]
    sessions = {row.session for row in rows}
    runtime = places.sessions

    def groups() -> list[str]:
        return [group for group in cgroups.children(places.cgroup) if is_id(group)]

    def records() -> list[str]:
        return [folder.name for folder in runtime.iterdir() if not folder.name.startswith(".")]

    def end(session: str) -> None:
        cgroups.end(places.cgroup_of(session))

    return [
        # A cgroup cannot contain a mark (records/marks.py), so the mark in the runtime folder is valid for it, too.
        Inventory("processes", runtime, sessions, groups, places.cgroup_of, end),
        *resources.captures.inventories(rows),
        Inventory(
            "session",
            runtime,
            sessions,
            records,
            lambda session: str(runtime / session),
            functools.partial(record.remove_folder, runtime),
        ),
    ]


def _adopt(sessions: Registry, entry: RuntimeRecord) -> None:
    resources = sessions.resources
    folder = resources.places.sessions / entry.row.session
    live = LiveSession.adopt(entry, folder, resources.launcher)
    if is_under_way(folder):
        finish_interrupted(resources, live, folder)
        _let_run(folder, entry)
    sessions.enlist(live)


def _let_run(folder: Path, entry: RuntimeRecord) -> None:
    """Thaw the session, because the last daemon may have died during a capture of it, and put back what the daemon had
    taken out of the session's terminals.
    """
    if tcp_repair.end(cgroups.members(entry.cgroup)):
        log.warning("a CRIU was killed while it dumped the session on %s", entry.row.branch)
    if terminal_queues.are_taken(folder):
        with contextlib.suppress(OSError), cgroups.frozen(entry.cgroup):  # the session may have just ended
            terminal_queues.put_back(cgroups.members(entry.cgroup), folder)
    cgroups.thaw(entry.cgroup)


def _end_dead(resources: Resources, row: LiveRow, entry: RuntimeRecord | None) -> None:
    """Seal the files of a session whose processes are gone. A failure is logged and retried later, because one damaged
    branch must not keep the home from opening.
    """

    same_boot = entry is not None and entry.boot_id == procfs.boot_id()
    conclusion = Sealed("crashed" if same_boot else "lost")
    how = "while no daemon ran" if same_boot else "because the machine was rebooted"
    log.warning("the session on %s has ended %s; its files are kept", row.branch, how)
    end = functools.partial(end_unheld, resources, row, resources.places.cgroup_of(row.session), conclusion)
    try:
        end()
    except (WaypointError, OSError) as error:
        resources.pending_records.add(row.branch, "the session has ended", end, error)


def _end_unborn(resources: Resources, row: LiveRow, *, kill: bool) -> None:
    """Undo a start that the last daemon did not finish. A failure is retried later. `kill`: whether to kill the
    session's processes. False if names.db may be an older copy: the session may then live, and its processes are kept
    and reported as unknown.
    """

    def take_back() -> None:
        if kill:
            cgroups.end(resources.places.cgroup_of(row.session))
        with resources.names.change("undo-start") as change:
            change.forget(row)

    try:
        take_back()
    except (WaypointError, OSError) as error:
        resources.pending_records.add(row.branch, "the start of a session was undone", take_back, error)


def end_dumps(resources: Resources) -> None:
    """Wait for the dumps of the last daemon to end. To be called before `adopt_all`. Blocks, up to MOST_S.

    A CRIU whose daemon is gone gives up when it has written all memory, and leaves the session frozen. Killing it
    earlier may harm the session (docs/criu.md), so only a CRIU that hangs is killed. A CRIU that cannot be killed is
    logged and left; it disturbs no later dump, because each CRIU has its own cgroup (`CriuSpawner`).
    """
    dumps = resources.places.dumps
    started_at, used_usec = time.monotonic(), -1
    while time.monotonic() - started_at < MOST_S and used_usec != (used_usec := cgroups.cpu_usec(dumps)):
        with contextlib.suppress(TimeoutError):
            cgroups.wait_empty(dumps, IDLE_S)
            break
    else:
        log.warning("a CRIU that the last daemon had started did not end: it is killed")
    try:
        cgroups.end(dumps)
    except TimeoutError as error:
        log.error("a CRIU of the last daemon cannot be killed: %s", error)
    cgroups.create(dumps)
