"""The verbs inside a session that change nothing: ps, logs, log, show, op log, doctor, status, and completion."""

import asyncio
from collections import deque

from waypoint.branch.graph import limited
from waypoint.model.facts import CaptureFacts
from waypoint.model.plainjson import fields
from waypoint.model.rendering import (
    capture_facts,
    headed,
    log_line,
    operations_table,
    sessions_table,
    survey_advice,
    survey_table,
)
from waypoint.model.requests import LogQuery, LogsRequest
from waypoint.model.streams import Frame
from waypoint.model.verbs import Given
from waypoint.model.verbs.completion import offered_inside
from waypoint.service import history, sessions
from waypoint.service.captures import no_criu_log
from waypoint.service.home import Home
from waypoint.service.inside import own
from waypoint.service.inside.printed import Printed, as_text
from waypoint.session.live.session import LiveSession

LIMIT = 20  # entries of `log` and `op log` without -n
LOGS_BYTES = 1 << 19  # the end of the scrollback that `logs` prints


async def ps(home: Home, live: LiveSession, given: Given) -> Printed:
    facts = [await sessions.session(home, live.branch)]
    return Printed(as_text(sessions_table(facts)), facts)


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
    return Printed(as_text(map(log_line, found)), found)


async def show(home: Home, live: LiveSession, given: Given) -> Printed:
    name = given.required("name")
    facts = await history.show(home, (await own.capture(home, live.branch, name)).id)
    facts = own.in_sight(home, live.branch, facts)
    session = await sessions.session(home, live.branch) if name == live.branch else None
    return Printed(as_text(headed(capture_facts(facts))), fields(facts) | {"session": session})


async def op_log(home: Home, live: LiveSession, given: Given) -> Printed:
    limit = given.number("limit") or LIMIT
    pages = limited(history.operations_of(home, live.branch), limit)
    found = [one for page in await asyncio.to_thread(list, pages) for one in page]
    return Printed(as_text(operations_table(found)) if found else "", found)


async def doctor(home: Home, live: LiveSession, given: Given) -> Printed:
    """Survey the session, or print a log of CRIU. An error named the log to this session: names of logs are random."""
    if (name := given.text("criu_log")) is None:
        found = await sessions.survey(home, live.branch)
        return Printed(as_text([*survey_table(found), *survey_advice(found)]), found)
    log = await asyncio.to_thread(home.captures.criu_log, name)
    if log is None or log[0] != live.record.row.setting.user.uid:
        raise no_criu_log(name)
    return Printed(log[1][-LOGS_BYTES:], {"log": name, "lines": log[1].splitlines()})


async def status(home: Home, live: LiveSession, given: Given) -> Printed:
    tip = own.tip(home, live.branch)
    tip_id = tip.id if tip else None
    return Printed(f"branch {live.branch}\ntip {tip_id or 'none'}\n", {"branch": live.branch, "tip": tip_id})


async def completion(home: Home, live: LiveSession, words: list[str]) -> str:
    """The completions of the last of `words`, those after `waypoint`: verbs, options, names in the branch's history."""
    offer = offered_inside(words)
    names = [live.branch]
    if offer.kind == "names" and (start := own.tip(home, live.branch)) is not None:
        found = await _history(home, live.branch, LogQuery(name=start.id))
        names += [name for one in found for name in one.names if name != live.branch]
    return offer.answer(names)


async def _history(home: Home, branch: str, query: LogQuery) -> list[CaptureFacts]:
    """Return the history like `history.log`, but show only the names that belong to `branch`."""
    pages = await history.log(home, query)
    return await asyncio.to_thread(lambda: [own.in_sight(home, branch, one) for page in pages for one in page])


class _Silent:
    """The input of a client that sends nothing and stays connected."""

    async def receive(self) -> Frame | None:
        await asyncio.Event().wait()
        return None


class _LastBytes:
    """An outlet that keeps the last `most` bytes of the output."""

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
