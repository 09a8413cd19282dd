"""The verbs inside a session that only look: at the session, its terminal, and the history of its branch."""

import asyncio
import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator
from typing import TypeVar

from waypoint.branch.graph import in_pieces
from waypoint.model.errors import UsageProblem, cleaned
from waypoint.model.facts import CaptureFacts, LimitFacts, OperationFacts, SessionFacts
from waypoint.model.names import parse_kind
from waypoint.model.requests import LogQuery, LogsRequest
from waypoint.model.streams import Frame
from waypoint.model.verbs import Given
from waypoint.model.verbs.completion import offered_inside
from waypoint.service import history, sessions
from waypoint.service.attached import layer_calls
from waypoint.service.home import Home
from waypoint.service.inside import own
from waypoint.service.inside.printed import Printed
from waypoint.session import session_facts
from waypoint.session.live.session import LiveSession

T = TypeVar("T")

LIMIT = 20  # entries of `log` and `op log`, if no number is given
LAYER_BYTES = 4 << 20  # the largest file that `layer get` gives
LOGS_BYTES = 1 << 19  # the end of the scrollback that `logs` gives


async def ps(home: Home, live: LiveSession, given: Given) -> Printed:
    facts = await sessions.session(home, live.branch)
    sizes = [f"{size // 1024} KiB" if size is not None else "-" for size in (facts.memory_bytes, facts.upper_bytes)]
    row = (facts.branch, facts.state, str(facts.pid), str(facts.processes), *sizes, str(facts.attached), facts.user)
    headings = ("BRANCH", "STATE", "PID", "PROCESSES", "MEMORY", "FILES", "ATTACHED", "USER")
    return Printed("".join(f"{heading:<10}{value}\n" for heading, value in zip(headings, row, strict=True)), [facts])


async def logs(home: Home, live: LiveSession, given: Given) -> Printed:
    outlet = _LastBytes(LOGS_BYTES)
    await live.logs(LogsRequest(), _Silent(), outlet)
    return Printed(outlet.text())


async def log(home: Home, live: LiveSession, given: Given) -> Printed:
    name = given.text("argument")
    start = await own.capture(home, live.branch, name) if name is not None else own.tip(home, live.branch)
    if start is None:
        return Printed("", [])
    query = LogQuery(name=start.id, limit=given.number("limit") or LIMIT)
    found = await _history(home, live.branch, query)
    return Printed("".join(map(_capture_line, found)), found)


async def show(home: Home, live: LiveSession, given: Given) -> Printed:
    found = await own.capture(home, live.branch, given.required("name"))
    facts = _in_sight(home, live.branch, await history.show(home, found.id))
    layers = [f"{kind} {layer['size_bytes']}" for kind, layer in facts.layers.items() if layer is not None]
    lines = {
        "capture": facts.capture,
        "names": ", ".join(facts.names),
        "branch": facts.branch,
        "parents": ", ".join(facts.parents),
        "tier": facts.tier,
        "created": facts.created,
        "reason": facts.reason,
        "message": facts.message,
        "user": facts.user,
        "folder": facts.cwd,
        "environment": " ".join(facts.environment),
        "layers": ", ".join(layers),
        "degraded": "; ".join(facts.degraded),
    }
    text = "".join(f"{heading:<13}{cleaned(value)}\n" for heading, value in lines.items() if value)
    text += "".join(
        f"{one.pid:>5}  {one.tier:<7}  {one.command}  {one.why}".rstrip() + "\n" for one in facts.processes or ()
    )
    return Printed(text, facts)


async def layer_list(home: Home, live: LiveSession, given: Given) -> Printed:
    found = layer_calls.facts_of(home, await own.capture(home, live.branch, given.required("name")))
    rows = (f"{one.kind}  {one.size_bytes}  {'folder' if one.is_folder else 'file'}\n" for one in found)
    return Printed("".join(rows), found)


async def layer_get(home: Home, live: LiveSession, given: Given) -> Printed:
    name, kind, dest = given.required("name"), parse_kind(given.required("kind")), given.required("dest")
    if dest != "-":
        next_step = f"have the shell write it: waypoint layer get {name} {kind} - > DEST"
        raise UsageProblem("write", dest, "inside a session a layer goes to stdout", next_step)
    found = await own.capture(home, live.branch, name)
    content = await layer_calls.small_file(home, found, name, kind, LAYER_BYTES)
    return Printed(content.decode(errors="surrogateescape"))


async def op_log(home: Home, live: LiveSession, given: Given) -> Printed:
    limit = given.number("limit") or LIMIT
    entries = itertools.islice(history.operations_of(home, live.branch), limit)
    found = await asyncio.to_thread(_listed, home, entries)
    return Printed("".join(map(_operation_line, found)), found)


async def status(home: Home, live: LiveSession, given: Given) -> Printed:
    tip, facts = own.tip(home, live.branch), session_facts.of_start(live)
    value = {
        "branch": live.branch,
        "tip": tip.id if tip else None,
        "restored": live.restored or None,
        "tier": live.record.tier,
        **{name: getattr(facts, name) for name in ("net", "allow_net", "no_way_out", "limits", "unlimited")},
    }
    lines = {
        "branch": live.branch,
        "tip": value["tip"] or "none",
        "restored": f"from {live.restored}, tier {live.record.tier or 'unknown'}" if live.restored else "no",
        "network": _network(facts),
        "limits": _limits(facts.limits) if facts.limits else "",
        "not held": "; ".join(facts.unlimited or []),
    }
    return Printed("".join(f"{heading} {said}\n" for heading, said in lines.items() if said), value)


def _network(facts: SessionFacts) -> str:
    if facts.no_way_out:
        return f"{facts.net}, no way out: {facts.no_way_out}"
    return f"{facts.net}, only to {', '.join(facts.allow_net)}" if facts.allow_net else str(facts.net)


def _limits(limits: LimitFacts) -> str:
    """As they are typed."""
    sizes = {"memory": limits["memory_bytes"], "disk": limits["disk_bytes"]}
    counts = {"cpus": limits["cpus"], "pids": limits["pids"]}
    words = [f"{name} {size >> 20}M" for name, size in sizes.items() if size is not None]
    return ", ".join([*words, *(f"{name} {count:g}" for name, count in counts.items() if count is not None)])


async def completion(home: Home, live: LiveSession, words: list[str]) -> str:
    """The answer at TAB to `words`, those behind `waypoint`: verbs, options, and names in the branch's history."""
    offer = offered_inside(words)
    names = [live.branch]
    if offer.kind == "names" and (start := own.tip(home, live.branch)) is not None:
        found = await _history(home, live.branch, LogQuery(name=start.id))
        names += [name for one in found for name in one.names if name != live.branch]
    return offer.answer(names)


async def _history(home: Home, branch: str, query: LogQuery) -> list[CaptureFacts]:
    """As `history.log`, with the names of each capture that processes on `branch` are told."""
    found = await history.log(home, query)
    return await asyncio.to_thread(_listed, home, (_in_sight(home, branch, one) for one in found))


def _listed(home: Home, found: Iterator[T]) -> list[T]:
    """The items of `found`, each step of which reads from the store. Blocks; waits while a session stands still."""
    items: list[T] = []
    for piece in in_pieces(found):
        home.between()
        items += piece
    return items


def _in_sight(home: Home, branch: str, capture: CaptureFacts) -> CaptureFacts:
    return dataclasses.replace(capture, names=own.in_sight(home, branch, capture.names))


def _capture_line(capture: CaptureFacts) -> str:
    words = cleaned(capture.message or capture.reason)
    return f"{capture.capture[:12]}  {_when(capture.created)}  {capture.tier}  {', '.join(capture.names)}  {words}\n"


def _operation_line(operation: OperationFacts) -> str:
    undo = "was undone" if operation.undone else operation.undo or f"no: {operation.said}"
    return f"{operation.number}  {_when(operation.at)}  {operation.verb}  undo: {undo}\n"


def _when(moment: str) -> str:
    return moment[:19].replace("T", " ")


class _Silent:
    """The input of a client that sends nothing and never goes."""

    async def receive(self) -> Frame | None:
        await asyncio.Event().wait()
        return None


class _LastBytes:
    """An outlet that keeps the last pieces of the output, no more than `most` bytes of it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: deque[bytes] = deque()
        self._size = 0

    async def output(self, data: bytes | memoryview) -> None:
        self._pieces.append(bytes(data))
        self._size += len(data)
        while self._size - len(self._pieces[0]) >= self._most:
            self._size -= len(self._pieces.popleft())

    async def errors(self, data: bytes | memoryview) -> None:
        await self.output(data)

    async def note(self, facts: dict[str, object]) -> None:
        """Ignore the facts: logs have none."""

    def text(self) -> str:
        return b"".join(self._pieces)[-self._most :].decode(errors="surrogateescape")
