"""What was, and taking it back, behind the routes: implements `service.History`."""

import asyncio
import itertools

from waypoint.branch import refs
from waypoint.branch.graph import walk_back
from waypoint.branch.undo import Deed, plan
from waypoint.model.errors import StateConflict, UnknownName, WaypointError
from waypoint.model.records import Operation
from waypoint.model.requests import (
    BranchFacts,
    CaptureFacts,
    OperationFacts,
)
from waypoint.session import capture_facts, facts
from waypoint.session.moments import Moments
from waypoint.session.sessions import Sessions
from waypoint.store.names import Names
from waypoint.upper.contract import Pool

LOG_LIMIT = 10_000


class HomeHistory:
    """Of one home."""

    def __init__(self, names: Names, pool: Pool, sessions: Sessions, moments: Moments) -> None:
        self._names = names
        self._pool = pool
        self._sessions = sessions
        self._moments = moments

    async def log(self, name: str | None, *, everything: bool, limit: int | None) -> list[CaptureFacts]:
        if everything:
            found = walk_back(self._names, self._names.captures(), limit)
        else:
            found = walk_back(self._names, [self._names.resolve(name or "main")], limit)
        return [capture_facts.of(capture, self._names.names_of(capture.id)) for capture in found]

    async def show(self, name: str) -> CaptureFacts:
        """Costs a walk over the capture's files, in a thread."""
        capture = self._names.resolve(name)
        size = await asyncio.to_thread(self._pool.usage, capture.layers.files.tree)
        return capture_facts.of(capture, self._names.names_of(capture.id), size)

    async def branches(self) -> list[BranchFacts]:
        rows = []
        for name, ref in self._names.refs().items():
            if ref.kind == "branch":
                tip = self._names.capture(ref.capture) if ref.capture else None
                rows.append(
                    BranchFacts(
                        name=name,
                        tip=ref.capture,
                        live=self._sessions.find(name) is not None,
                        tier=tip.tier if tip else None,
                        created=facts.iso_time(ref.created),
                        captured=facts.iso_time(tip.created) if tip else None,
                    )
                )
        return rows

    async def rename(self, branch: str, new: str) -> None:
        async with self._sessions.turn(branch, new):
            refs.rename(self._names, branch, new, self._live())

    async def remove(self, names: list[str]) -> None:
        async with self._sessions.turn(*names):
            refs.remove(self._names, names, self._live())

    async def operations(self, limit: int | None) -> list[OperationFacts]:
        return [self._describe(operation) for operation in self._names.operations(limit)]

    async def undo(self, number: int | None) -> OperationFacts:
        operation = self._to_undo(number)
        found = plan(self._names, operation)
        (before,) = self._names.operations(1)
        for deed in found.deeds:
            await self._carry_out(deed)
        with self._names.change("undo") as change:
            change.undoes = operation.number
            change.carried = self._on_sessions({deed.branch for deed in found.deeds}, before.number)
            for name, ref in found.names.items():
                change.put(name, ref)
        return self._describe(self._names.operations(1)[0])

    async def _carry_out(self, deed: Deed) -> None:
        match deed.act:
            case "end":
                if self._sessions.find(deed.branch) is not None:
                    await self._sessions.stop(deed.branch, discard=False)
            case "start":
                await self._moments.restore(deed.branch, deed.branch)
            case "restore" if deed.only == "files":
                await self._moments.restore_files(deed.branch, deed.capture or deed.branch)
            case "restore" if deed.only == "shell":
                await self._moments.restore_shell(deed.branch, deed.capture or deed.branch)
            case "restore":
                await self._moments.restore(deed.branch, deed.capture or deed.branch)

    def _on_sessions(self, branches: set[str], after: int) -> list[int]:
        """The operations after that of number `after` in which sessions on `branches` began or ended."""
        later = itertools.takewhile(lambda one: one.number > after, self._names.operations(LOG_LIMIT))
        return [one.number for one in later if branches & one.sessions.keys()]

    def _to_undo(self, number: int | None) -> Operation:
        if number is not None:
            found = self._names.operation(number)
            if found is None:
                raise UnknownName("take back", f"operation {number}", "there is none of this number", "waypoint op log")
            return found
        carried: set[int] = set()  # parts of an undo: to take those back would be to do the operation again
        for operation in self._names.operations(LOG_LIMIT):
            carried.update(operation.carried)
            if not operation.undone and operation.undoes is None and operation.number not in carried:
                return operation
        raise StateConflict("take back", "the last operation", "there is none left", "see 'waypoint op log'")

    def _live(self) -> set[str]:
        return {live.branch for live in self._sessions.live}

    def _describe(self, operation: Operation) -> OperationFacts:
        words: str | None = None
        said = ""
        try:
            words = plan(self._names, operation).words
        except WaypointError as error:
            said = error.said
        moves = {
            name: (
                move.before.capture if move.before else None,
                move.after.capture if move.after else None,
            )
            for name, move in operation.moves.items()
        }
        return OperationFacts(
            number=operation.number,
            at=facts.iso_time(operation.at),
            verb=operation.verb,
            moves=moves,
            sessions=operation.sessions,
            undone=operation.undone,
            undoes=operation.undoes,
            undo=words,
            said=said,
        )
