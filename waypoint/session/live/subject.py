"""A live session as the capture package sees it: implements `waypoint.capture.layers.subject.Subject`."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from waypoint.capture.layers.subject import SubjectFacts
from waypoint.linux.tasks import cgroups
from waypoint.linux.tty import terminals
from waypoint.model.records import ShellLayer, TerminalLayer
from waypoint.processes import calls, terminal_queues
from waypoint.session.live import rest
from waypoint.session.live.record import RuntimeRecord
from waypoint.session.live.session import LiveSession
from waypoint.terminal import standstill
from waypoint.terminal.shell.asked import Asked, ask_state, still_holds

T = TypeVar("T")


def facts_of(record: RuntimeRecord) -> SubjectFacts:
    return SubjectFacts(
        branch=record.row.branch,
        tree=record.row.tree,
        cgroup=record.cgroup,
        init_pid=record.init_pid,
        setting=record.row.setting,
        fixed=record,
    )


class LiveSubject:
    """The Subject for a LiveSession. Create it in the event loop, and use it in one other thread."""

    def __init__(self, live: LiveSession, session_folder: Path) -> None:
        self.facts = facts_of(live.record)
        self._live = live
        self._folder = session_folder
        self._loop = asyncio.get_running_loop()
        self._asked: Asked | None = None

    def processes(self) -> list[int]:
        return self._live.processes()

    def leader(self) -> int:
        with contextlib.suppress(OSError):  # the session has ended
            leader = terminals.session_leader(self._live.terminal.master)
            return leader if leader in self.processes() else 0
        return 0

    def ask_shell(self) -> ShellLayer | None:
        self._asked = self._in_loop(ask_state(self._live.shell))
        return self._asked.layer if self._asked else None

    @property
    def is_shell_lost(self) -> bool:
        return self._live.shell.watch.is_state_lost

    def hold(self) -> None:
        self._call_in_loop(self._live.terminal.stand_still)

    def drain(self) -> None:
        self._live.terminal.reader.drain()

    def shell_holds(self) -> bool:
        return self._asked is not None and still_holds(self._live.shell, self._asked)

    def take_unread(self) -> None:
        terminal_queues.take(self.processes(), self._folder)

    def put_unread_back(self) -> None:
        terminal_queues.put_back(self.processes(), self._folder)

    def save_terminal(self, folder: Path) -> TerminalLayer:
        return standstill.save(self._live.terminal, self._folder, folder)

    def note_rest(self, capture_id: str) -> None:
        self._live.rested = rest.look(self._live.record, self._live.terminal, capture_id)

    def go_on(self) -> None:
        self._call_in_loop(self._live.terminal.go_on)

    def _call_in_loop(self, work: Callable[[], None]) -> None:
        async def call() -> None:
            work()

        self._in_loop(call())

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def undo_freeze(live: LiveSession, session_folder: Path) -> None:
    """Undo what a capture with `dump_later` has done to the frozen session. Blocks. Call `let_go_on` after it."""
    with contextlib.suppress(OSError):  # the session has ended; else the next daemon puts the bytes back
        terminal_queues.put_back(live.processes(), session_folder)
    calls.resume(live.record.cgroup)


def let_go_on(live: LiveSession) -> None:
    """Thaw a session that was captured with `keep_frozen`, and start its terminal again. Call it in the event loop."""
    try:
        cgroups.thaw(live.record.cgroup)
    finally:
        live.terminal.go_on()
