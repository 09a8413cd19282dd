"""Serving the requests of a session's own processes, by the same functions that serve the HTTP interface."""

import contextlib
from collections.abc import Awaitable, Callable

from waypoint.model.errors import StateConflict, UsageProblem
from waypoint.model.records import Caller
from waypoint.model.verbs import COMPLETE, Given, Verb
from waypoint.model.verbs.inside import HelpWanted, parse, wants_json
from waypoint.model.verbs.table import BRANCHES, ONE_BRANCH
from waypoint.records.callers import asked_by
from waypoint.service.background.bugs import as_problem
from waypoint.service.home import Home
from waypoint.service.inside import acts, looks
from waypoint.service.inside.printed import Printed
from waypoint.session.live.session import LiveSession
from waypoint.terminal.inside.spool import Answer, refusal

Inward = Callable[[Home, LiveSession, Given], Awaitable[Printed]]

ACTS: dict[str, Inward] = {
    "checkpoint": acts.checkpoint,
    "point": acts.point,
    "restore": acts.restore,
    "rewind": acts.rewind,
    "fork": acts.fork,
    "stop": acts.stop,
    "undo": acts.undo,
    "ps": looks.ps,
    "logs": looks.logs,
    "log": looks.log,
    "show": looks.show,
    "op log": looks.op_log,
    "doctor": looks.doctor,
    "status": looks.status,
}
"""The function of each verb in `INSIDE` of the table of verbs."""

MOVES = frozenset({"checkpoint", "point", "restore", "rewind", "fork", "stop", "undo"})
"""The verbs that take long. Requests of one session for these verbs are served one after the other."""


async def serve(home: Home, live: LiveSession, words: list[str]) -> Answer:
    """Answer the request `words` of a process in the session `live`. Waits for one of the session's places for such
    requests. An error becomes an answer, too; with `--json` one JSON value.
    """
    try:
        if words[:1] == [COMPLETE]:
            async with live.inside.places:
                return Answer(0, await looks.completion(home, live, words[1:]))
        verb, given = parse(words)
        _check_branch(verb, given, live.branch)
        if verb.name in MOVES and live.hooks_running:
            next_step = "run the command again when they have ended"
            raise StateConflict(
                verb.name, f"branch {live.branch}", "the session's hooks are running", next_step, code="hooks-running"
            )
        async with contextlib.AsyncExitStack() as turns:
            if verb.name in MOVES:  # before a place is taken, so that waiting requests do not use up the places
                await turns.enter_async_context(live.inside.moving)
            await turns.enter_async_context(live.inside.places)
            if home.sessions.find(live.branch) is not live:  # a restore has put another session in its place
                next_step = "run the command again: the session that has replaced this one answers"
                raise StateConflict("serve", f"branch {live.branch}", "its session has been replaced", next_step)
            with asked_by(Caller(branch=live.branch)):
                printed = await ACTS[verb.name](home, live, given)
        return Answer(0, printed.as_json() if wants_json(words) else printed.text)
    except HelpWanted as wanted:
        return Answer(wanted.exit_code, wanted.text)
    except Exception as error:  # the border: whatever a service function raises becomes an answer
        return refusal(words, as_problem(error, f"a process of branch {live.branch}"))


def _check_branch(verb: Verb, given: Given, own: str) -> None:
    """Raise UsageProblem if `verb` is to work on a branch that is not the session's own."""
    named = [given.text("branch") if "branch" in given else None]
    for argument in verb.arguments:
        if argument in (ONE_BRANCH, BRANCHES):
            named += given.texts(argument.name) if argument.many else [given.text(argument.name)]
    for branch in named:
        if branch not in (None, own):
            raise UsageProblem("work on", f"branch {branch}", f"this session is on {own}", "leave out --branch")
