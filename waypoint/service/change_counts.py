"""Counting what each capture has changed since its parent: `+12 -3 in 4 files`.

A capture never changes, so the count is kept in names.db. It is made when somebody asks for it, in a thread of its own.
"""

import concurrent.futures
import contextlib
import dataclasses
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from waypoint.capture.captures import Captures
from waypoint.model.errors import WaypointError
from waypoint.model.records import Capture, ChangeCount
from waypoint.model.requests import DiffRequest
from waypoint.model.session_facts import SessionFacts
from waypoint.records.names import Names
from waypoint.service import capture_facts
from waypoint.session.differences import compare
from waypoint.session.live.resources import Resources

SHORT_WAIT_S, LONG_WAIT_S = 0.1, 10.0
"""How long a list of captures, and the facts about a single one, wait for counts that are being made."""
_MOST_AHEAD = 64  # captures that wait for their count; more are counted when somebody asks again

log = logging.getLogger(__name__)


class ChangeCounts:
    def __init__(self, resources: Resources, captures: Captures) -> None:
        self._resources = resources
        self._captures = captures
        self._names: Names = resources.names
        self._thread = ThreadPoolExecutor(1, "counts")
        self._lock = threading.Lock()
        self._running: dict[str, Future[None]] = {}  # by capture
        self._uncounted: set[str] = set()  # captures whose count cannot be made

    def want(self, captures: Sequence[str], wait_s: float = 0.0) -> None:
        """Begin to count the changes of those captures that have no count, and wait at most `wait_s` for them."""
        standings = self._names.standings(captures)
        with self._lock:
            for ident in captures:
                is_known = standings[ident].changes is not None or standings[ident].removed
                if is_known or ident in self._running or ident in self._uncounted or len(self._running) >= _MOST_AHEAD:
                    continue
                with contextlib.suppress(RuntimeError):  # the daemon is ending
                    self._running[ident] = self._thread.submit(self._count, ident)
            waiting = [self._running[ident] for ident in captures if ident in self._running]
        if waiting and wait_s:
            concurrent.futures.wait(waiting, wait_s)

    def of_sessions(self, sessions: list[SessionFacts]) -> list[SessionFacts]:
        """The facts with the counts of the branches' last captures. Nothing is waited for."""
        tips = {one.branch: ref.capture for one in sessions if (ref := self._names.ref(one.branch)) and ref.capture}
        self.want(list(tips.values()))
        standings = self._names.standings(list(tips.values()))
        counts = {branch: capture_facts.of_changes(standings[tip].changes) for branch, tip in tips.items()}
        return [dataclasses.replace(one, changes=counts.get(one.branch)) for one in sessions]

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _count(self, ident: str) -> None:
        try:
            capture = self._names.capture(ident)
            pair = [*map(self._names.capture, capture.parents[:1]), capture]
            if all(map(self._captures.images.is_hot, pair)):  # nothing is extracted from the store for this
                counted = self._compare(pair)
                with self._names.change("count") as change:
                    standing = change.standing(ident)
                    change.set_standing(ident, msgspec.structs.replace(standing, changes=counted))
        except (WaypointError, OSError) as error:
            log.info("the changes of capture %s are not counted: %s", ident[:12], error)
            self._uncounted.add(ident)
        finally:
            with self._lock:
                del self._running[ident]

    def _compare(self, pair: Sequence[Capture]) -> ChangeCount:
        """`pair`: the capture, and before it its parent, if it has one; otherwise it is compared with the machine."""
        with contextlib.ExitStack() as opened:
            held = [opened.enter_context(self._captures.hold(one)) for one in pair]
            before = held[0] if len(held) > 1 else None
            found = compare(self._resources, before, held[-1], DiffRequest(one=pair[-1].id))
        files = [one for one in found if one.kind == "file" and one.type != "folder"]
        return ChangeCount(
            files=len(files),
            insertions=sum(one.insertions or 0 for one in files),
            deletions=sum(one.deletions or 0 for one in files),
        )
