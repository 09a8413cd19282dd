"""Ending a session: kill its processes, keep or remove its files, inform its clients."""

import asyncio
import contextlib
import functools
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from waypoint.capture import sealing
from waypoint.capture.dumping_later import is_awaited, without_processes
from waypoint.capture.sealing import NO_FINAL_STATE, FinalShellState
from waypoint.capture.steps import Step, reach_in_loop
from waypoint.linux.tasks import cgroups, pidfd, procfs, signals
from waypoint.linux.tasks.signals import Members
from waypoint.linux.tasks.stages import stage
from waypoint.linux.tty import terminals
from waypoint.model.errors import Failed, WaypointError, as_text
from waypoint.model.records import Capture, EndReason, LiveRow
from waypoint.model.stages import Stage
from waypoint.session.live import record
from waypoint.session.live.record import RuntimeRecord
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.live.subject import facts_of
from waypoint.terminal.exec.ending import clear_folder
from waypoint.upper.changes import count_changes

SETTLE_S = 15.0
# Seconds for the shell of a stopped session, after the SIGHUP, to write its history and run its EXIT trap. An idle bash
# takes a few milliseconds.
HANG_UP_S = 0.2

log = logging.getLogger(__name__)

Ended = TypeVar("Ended", Capture | None, None)


class Conclusion(Protocol):
    """The last step when a session ends, which keeps or removes its files."""

    def conclude(self, resources: Resources, row: LiveRow) -> Capture | None:
        """Seal or remove the tree of `row`, which must not be mounted anywhere, and record this. Return the capture
        that keeps the session's files, or None if nothing is kept. Blocks. May be called again after an exception.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """Keep the session's files as the branch's tip. `last`: the state that its shell reported before the end."""

    reason: EndReason
    last: FinalShellState = NO_FINAL_STATE

    def conclude(self, resources: Resources, row: LiveRow) -> Capture | None:
        return resources.captures.seal(row, self.reason, self.last)


@dataclass(frozen=True, slots=True)
class Discarded:
    """Keep nothing of the session. If the branch has no capture made on it, remove the branch, too."""

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
    """Remove the session's files, because `capture` contains all of the session and is already recorded in its place.
    `is_undone`: an undo has ended the session, so the branch does not continue from `capture`.
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
    """Ends live sessions. Each session is ended once, by its own task, which continues if the client disconnects."""

    def __init__(self, resources: Resources, forget: Callable[[LiveSession], None]) -> None:
        """`forget`: called with the ended session once its branch can be started again."""
        self._resources = resources
        self._forget = forget
        self._leaving: dict[str, asyncio.Task[Capture | None]] = {}
        """By branch, the end of the session that was replaced there."""
        self._tasks: set[asyncio.Task[Capture | None] | asyncio.Task[None]] = set()

    def begin(self, live: LiveSession, conclusion: Conclusion, *, gently: bool = False) -> asyncio.Task[Capture | None]:
        """Begin to end `live`, unless it is ending already. The task's result is the capture that keeps the session, or
        None. `gently`: send SIGHUP to the shell before all processes are killed.
        """
        if live.ending is None:
            live.ending = self._keep(asyncio.ensure_future(self._end(live, conclusion, gently=gently)))
        return live.ending

    def leave(self, live: LiveSession, aside: Capture) -> None:
        """Begin to dump `live`, which was replaced and stays frozen, into the recorded capture `aside`; then end it.
        `settled` waits for that.
        """
        live.terminal.finish()
        live.ending = self._keep(asyncio.ensure_future(self._leave(live, aside)))
        self._note_leaving(live.branch, live.ending)

    def resume_leaving(self, row: LiveRow, entry: RuntimeRecord | None) -> None:
        """Do the rest of `leave` that the last daemon has not done. `entry`: the session's runtime record, or None."""
        self._note_leaving(row.branch, self._keep(asyncio.ensure_future(self._leave_unheld(row, entry))))

    def _note_leaving(self, branch: str, task: asyncio.Task[Capture | None]) -> None:
        self._leaving[branch] = task
        task.add_done_callback(lambda _: self._leaving.pop(branch))

    async def settled(self, *branches: str) -> None:
        """Wait until the replaced sessions of these branches have been dumped and have ended."""
        if found := [self._leaving[branch] for branch in branches if branch in self._leaving]:
            await asyncio.wait(found)

    async def _leave(self, live: LiveSession, aside: Capture) -> Capture | None:
        resources, row = self._resources, msgspec.structs.replace(live.record.row, leaves_to=aside.id)
        try:
            with stage(Stage.END, live.branch):
                kept = await asyncio.to_thread(dump_left, resources, row, live.record, aside)
        except (WaypointError, OSError) as error:
            self._forget(live)
            self._keep(asyncio.ensure_future(live.close(None)))  # `end_left` removes the rest
            raise self._leave_later(row, live.record, error) from error
        await reach_in_loop(Step.COMPLETED)
        return await self._end(live, Kept(kept), gently=False)

    async def _leave_unheld(self, row: LiveRow, entry: RuntimeRecord | None) -> Capture | None:
        try:
            return await asyncio.to_thread(end_left, self._resources, row, entry)
        except (WaypointError, OSError) as error:
            raise self._leave_later(row, entry, error) from error

    def _leave_later(self, row: LiveRow, entry: RuntimeRecord | None, error: Exception) -> Failed:
        write = functools.partial(end_left, self._resources, row, entry)
        return self._resources.pending_records.add(row.branch, "the replaced session is captured", write, error)

    async def settle(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SETTLE_S)

    async def _end(self, live: LiveSession, conclusion: Conclusion, *, gently: bool) -> Capture | None:
        """End the session. If the end cannot be recorded, this raises Failed, and a later attempt records it
        (pending_records.py). Until then the runtime folder stays, so that the next daemon knows how the session ended.
        """
        resources, row = self._resources, live.record.row
        status = None
        is_recorded = False
        shown = contextlib.ExitStack()
        shown.enter_context(stage(Stage.END, live.branch))
        try:
            live.shell.desk.hung_up.set()
            is_hung_up = gently and await asyncio.to_thread(
                _hang_up, live.terminal.master, live.record.init_pid, live.processes
            )
            await asyncio.to_thread(cgroups.end, live.record.cgroup)
            await reach_in_loop(Step.ENDED)
            if live.capturing is not None:  # its thread uses the terminal until the capture has failed
                await asyncio.wait([live.capturing])
            live.terminal.go_on()  # a capture may have stopped the terminal
            await live.wait_drained()
            await asyncio.to_thread(clear_folder, live.shell.desk.folder)
            if is_hung_up:  # the shell's exit status only says that the SIGHUP has ended it
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
            shown.close()
            self._forget(live)
            self._keep(asyncio.ensure_future(self._close(live, status, is_recorded=is_recorded)))

    async def _close(self, live: LiveSession, status: int | None, *, is_recorded: bool) -> None:
        await live.close(status)
        await asyncio.to_thread(self._resources.places.kit.forget, live.record.row.session)
        if is_recorded:
            await asyncio.to_thread(record.remove_folder, self._resources.places.sessions, live.record.row.session)

    def _keep(self, task: asyncio.Task[Ended]) -> asyncio.Task[Ended]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report_bug)
        return task


def _hang_up(master: int, init_pid: int, members: Members) -> bool:
    """Send SIGHUP to the leader of the terminal's session (the shell), which passes it to its jobs. Block until the
    session has ended, at most HANG_UP_S. Return False if there is no leader.
    """
    is_sent = False
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError):  # the session has ended by itself
        init = pidfd.open(init_pid)
        opened.callback(os.close, init)
        pid = terminals.session_leader(master)
        if not pid:
            return False
        if signals.send(pid, signal.SIGHUP, members):
            is_sent = True
            signals.send(pid, signal.SIGCONT, members)
            pidfd.wait_ended(init, HANG_UP_S)
    return is_sent


def _describe_kept(resources: Resources, branch: str, capture: Capture | None) -> dict[str, object]:
    """Return the fields of the `x` frame that tell attached clients which capture keeps the ended session."""
    if capture is None:
        ref = resources.names.ref(branch)
        return {"kept": None, "before": ref.capture if ref is not None else None}
    kept: dict[str, object] = {"kept": {"capture": capture.id, "tier": capture.tier}}
    try:
        with resources.captures.hold(capture) as held:
            changes = count_changes(held.files)
    except (OSError, WaypointError):  # another request has dropped the capture
        return kept
    folders = [as_text(folder) for folder in changes.folders]
    return {**kept, "changed": changes.files, "more": changes.are_more, "folders": folders}


def _report_bug(task: asyncio.Task[Ended]) -> None:
    """Report an unexpected exception of the task that ends a session, since nobody may await the task. Failed is
    expected: the end will be recorded later (pending_records.py).
    """
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, Failed):
        task.get_loop().call_exception_handler({"message": "the end of a session", "exception": error})


def dump_left(resources: Resources, row: LiveRow, entry: RuntimeRecord | None, aside: Capture) -> Capture:
    """Dump the replaced session `row`, which is frozen, into the recorded capture `aside`, and record that. Returns the
    complete record. Blocks. May be called again after an exception. `entry`: the session's runtime record, or None.
    """
    found = resources.names.capture(aside.id)
    if is_awaited(found):
        if entry is not None and entry.boot_id == procfs.boot_id():
            completion = resources.captures.dump_awaited(found, facts_of(entry))
        else:
            completion = without_processes(found, "", "they ended before CRIU had dumped them")
        with resources.names.change("capture") as change:
            found = change.complete(found.id, *completion)
            change.forget(row)
    resources.captures.note_dumped(found.id)
    return found


def end_left(resources: Resources, row: LiveRow, entry: RuntimeRecord | None) -> Capture | None:
    """Dump the replaced session `row` (`dump_left`), for which the daemon has no LiveSession, and end it."""
    assert row.leaves_to is not None
    kept = dump_left(resources, row, entry, resources.names.capture(row.leaves_to))
    return end_unheld(resources, row, resources.places.cgroup_of(row.session), Kept(kept))


def end_unheld(resources: Resources, row: LiveRow, cgroup: str, conclusion: Conclusion) -> Capture | None:
    """End the session `row`, for which the daemon has no LiveSession. Return the capture that keeps its files, or None
    if nothing is kept. Blocks. May be called again after an exception.
    """
    cgroups.end(cgroup)
    kept = conclusion.conclude(resources, row)
    record.remove_folder(resources.places.sessions, row.session)
    resources.places.kit.forget(row.session)
    return kept
