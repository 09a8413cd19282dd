"""The end of a session: kill its processes, keep or remove its files, inform its clients."""

import asyncio
import contextlib
import functools
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from waypoint.capture import sealing
from waypoint.capture.sealing import NO_FINAL_STATE, FinalShellState
from waypoint.capture.steps import Step, reach_in_loop
from waypoint.linux.tasks import cgroups, pidfd
from waypoint.linux.tty import terminals
from waypoint.model.errors import Failed, WaypointError
from waypoint.model.records import Capture, EndReason, LiveRow
from waypoint.session.live import record
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.terminal.exec.ending import clear_folder
from waypoint.upper.changes import count_changes

SETTLE_S = 15.0
# Seconds for the shell of a stopped session, after the SIGHUP, to write its history and run its EXIT trap. An idle bash
# takes a few milliseconds.
HANG_UP_S = 0.2

log = logging.getLogger(__name__)

Ended = TypeVar("Ended", Capture | None, None)


class Conclusion(Protocol):
    """The last step of an end: what happens to the files of the ended session."""

    def conclude(self, resources: Resources, row: LiveRow) -> Capture | None:
        """Seal or remove the tree of `row`, which must be mounted nowhere, and record that. Returns the capture that
        keeps the session, None if nothing is kept. Blocks. May be called again after an exception.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """Keep the session's files as the branch's tip. `last`: what its shell reported before the end."""

    reason: EndReason
    last: FinalShellState = NO_FINAL_STATE

    def conclude(self, resources: Resources, row: LiveRow) -> Capture | None:
        return resources.captures.seal(row, self.reason, self.last)


@dataclass(frozen=True, slots=True)
class Discarded:
    """Keep nothing of the session. A branch without any capture is removed with it."""

    def conclude(self, resources: Resources, row: LiveRow) -> Capture | None:
        with resources.names.change("discard") as change:
            change.forget(row)
            ref = change.ref(row.branch)
            if ref is not None and ref.kind == "branch" and ref.capture == ref.origin:
                change.put(row.branch, None)
        _remove_tree(resources, row)
        return None


@dataclass(frozen=True, slots=True)
class Kept:
    """Remove the session's files: `capture` has all of the session, which is off the record already. `is_undone`: the
    branch does not go on from `capture`.
    """

    capture: Capture
    is_undone: bool = False

    def conclude(self, resources: Resources, row: LiveRow) -> Capture | None:
        _remove_tree(resources, row)
        return self.capture


def _remove_tree(resources: Resources, row: LiveRow) -> None:
    try:
        resources.pool.remove(row.tree)
    except WaypointError as error:
        log.error("%s", error)


class Endings:
    """Ends live sessions. Each end runs once, in its own task, which survives the client that asked for it."""

    def __init__(self, resources: Resources, forget: Callable[[LiveSession], None]) -> None:
        """`forget`: called with the ended session once its branch can be started again."""
        self._resources = resources
        self._forget = forget
        self._tasks: set[asyncio.Task[Capture | None] | asyncio.Task[None]] = set()

    def begin(self, live: LiveSession, conclusion: Conclusion, *, gently: bool = False) -> asyncio.Task[Capture | None]:
        """Begin to end `live`, unless its end is under way. The result is the capture that keeps the session, if any.
        `gently`: send SIGHUP to the shell before all processes are killed.
        """
        if live.ending is None:
            live.ending = self._keep(asyncio.ensure_future(self._end(live, conclusion, gently=gently)))
        return live.ending

    async def settle(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SETTLE_S)

    async def _end(self, live: LiveSession, conclusion: Conclusion, *, gently: bool) -> Capture | None:
        """End the session. If its record cannot be written, the record is pending, and this raises Failed. Until it is
        written the runtime folder stays: from it the next daemon knows how the session has ended.
        """
        resources, row = self._resources, live.record.row
        status = None
        is_recorded = False
        try:
            live.shell.desk.hung_up.set()
            is_hung_up = gently and await asyncio.to_thread(_hang_up, live.terminal.master, live.record.init_pid)
            await asyncio.to_thread(cgroups.end, live.record.cgroup)
            await reach_in_loop(Step.ENDED)
            if live.capturing is not None:  # a thread uses the terminal until that capture has failed
                await asyncio.wait([live.capturing])
            live.terminal.go_on()  # a capture may have left the terminal held
            await live.wait_drained()
            await asyncio.to_thread(clear_folder, live.shell.desk.folder)
            if is_hung_up:  # the exit status is that of the SIGHUP, not the shell's own
                live.shell.desk.folder.remove(os.path.basename(sealing.EXIT_FILE))
            status = sealing.read_exit_status(resources.pool.path(row.tree))
            capture = await asyncio.to_thread(conclusion.conclude, resources, row)
            is_recorded = True
            if live.is_followed:
                live.kept = await asyncio.to_thread(_describe_kept, resources, live.branch, capture)
                if isinstance(conclusion, Kept) and conclusion.is_undone:
                    live.kept = {**live.kept, "undone": True}
        except (WaypointError, OSError) as error:
            write = functools.partial(end_unheld, resources, row, live.record.cgroup, conclusion)
            raise resources.pending_records.add(row.branch, "the session has ended", write, error) from error
        else:
            await reach_in_loop(Step.CONCLUDED)
            return capture
        finally:
            self._forget(live)
            self._keep(asyncio.ensure_future(self._close(live, status, is_recorded=is_recorded)))

    async def _close(self, live: LiveSession, status: int | None, *, is_recorded: bool) -> None:
        await live.close(status)
        if is_recorded:
            await asyncio.to_thread(record.remove_folder, self._resources.places.sessions, live.record.row.session)

    def _keep(self, task: asyncio.Task[Ended]) -> asyncio.Task[Ended]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report_bug)
        return task


def _hang_up(master: int, init_pid: int) -> bool:
    """Send SIGHUP to the leader of the terminal's session, which passes it to its jobs. Blocks until the session has
    ended, at most HANG_UP_S. False if there is no leader.
    """
    is_sent = False
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError):  # the session has ended by itself
        init = pidfd.open(init_pid)
        opened.callback(os.close, init)
        pid = terminals.session_leader(master)
        if not pid:
            return False
        leader = pidfd.open(pid)
        opened.callback(os.close, leader)
        if terminals.session_leader(master) == pid:  # else another process may have the pid
            pidfd.send_signal(leader, signal.SIGHUP)
            is_sent = True
            with contextlib.suppress(ProcessLookupError):  # SIGHUP has ended it
                pidfd.send_signal(leader, signal.SIGCONT)
            pidfd.wait_ended(init, HANG_UP_S)
    return is_sent


def _describe_kept(resources: Resources, branch: str, capture: Capture | None) -> dict[str, object]:
    """What is kept of an ended session, as fields of the `x` frame for attached clients."""
    if capture is None:
        ref = resources.names.ref(branch)
        return {"kept": None, "before": ref.capture if ref is not None else None}
    kept: dict[str, object] = {"kept": {"capture": capture.id, "tier": capture.tier}}
    try:
        with resources.captures.hold(capture) as held:
            changes = count_changes(held.files)
    except (OSError, WaypointError):  # another request has dropped the capture
        return kept
    return {**kept, "changed": changes.files, "more": changes.are_more}


def _report_bug(task: asyncio.Task[Ended]) -> None:
    """Report an unexpected exception of an end, which may have no caller. Failed means a pending record."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, Failed):
        task.get_loop().call_exception_handler({"message": "the end of a session", "exception": error})


def end_unheld(resources: Resources, row: LiveRow, cgroup: str, conclusion: Conclusion) -> Capture | None:
    """End the session `row`, which the daemon does not hold. Returns the capture that keeps it, None if nothing is
    kept. Blocks. May be called again after an exception.
    """
    cgroups.end(cgroup)
    kept = conclusion.conclude(resources, row)
    record.remove_folder(resources.places.sessions, row.session)
    return kept
