"""The tool `try`: forks a capture, runs a command in each fork, and may keep the best."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from waypoint.agents.mcp.calls import Call, Cancelled
from waypoint.agents.mcp.commands import run_exec
from waypoint.agents.mcp.outputs import DEFAULT_BYTES, Recorder
from waypoint.agents.mcp.results import Attempt, Best, Executed, Tried
from waypoint.agents.mcp.toolbox import tool
from waypoint.agents.mcp.words import MaxBytes, New, Timeout
from waypoint.client import Session
from waypoint.model.errors import UsageProblem, WaypointError
from waypoint.model.names import parse_name

MOST = 64


@tool("try", "Try commands side by side", "adds", open_world=True)
def try_commands(
    call: Call,
    *,
    name: Annotated[str, Meta(description="The checkpoint, capture or running branch from which each try starts.")],
    commands: Annotated[
        list[str],
        Meta(
            min_length=1,
            max_length=MOST,
            description="One command for each try. {i} and {branch} stand for the number and the branch of the try.",
        ),
    ],
    count: Annotated[int, Meta(ge=1, le=MOST, description="With one command: run it in so many tries.")] | None = None,
    prefix: Annotated[str, Meta(description="The branches are PREFIX-1, PREFIX-2 and so on.")] = "try",
    timeout_s: Timeout | None = None,
    keep: Annotated[New, Meta(description="Keep the best try as a checkpoint of this name, and end all sessions.")]
    | None = None,
    score: Annotated[str, Meta(description="A command whose last word is a number; the highest is the best.")]
    | None = None,
    max_bytes: MaxBytes = DEFAULT_BYTES,
) -> Tried:
    """Start one session for each command from the same state, and run the commands side by side.

    Without `keep` the sessions run on; `stop` them when you have looked. With `keep`, the best of the commands that
    ended with 0 becomes a checkpoint: the first of them, or the one with the highest `score`. If there is none, the
    sessions run on. Cancelling the call ends the sessions and deletes their files.
    """
    if count is not None and len(commands) > 1:
        raise UsageProblem("try", f"{len(commands)} commands", "count goes with one command", "leave out count")
    if score is not None and keep is None:
        raise UsageProblem("use", "score", "it chooses which try to keep", "give keep, too")
    if keep is not None:
        parse_name(keep)
    sessions: list[Session] = []
    try:
        sessions += call.client.fork(name, count=count or len(commands), prefix=prefix)
        call.check()
        tries = [
            Try(one, text.replace("{i}", str(number)).replace("{branch}", one.branch), call.record(max_bytes))
            for number, (one, text) in enumerate(zip(sessions, commands * (count or 1), strict=True), 1)
        ]
        limit = {"timeout_s": timeout_s} if timeout_s is not None else {}
        _run(call, tries, limit)
        good = [one for one in tries if one.exit == 0]
        if score is not None:
            _score(call, good, score, limit)
            good = sorted((one for one in good if one.score is not None), key=lambda one: -(one.score or 0.0))
        return _result(tries, keep, good[0] if good else None)
    except Cancelled:
        _in_each([lambda one=one: one.stop(discard=True) for one in sessions])  # type: ignore[misc]
        raise


@dataclass(slots=True)
class Try:
    """One command in one fork. `error`: why it has no end, no score, was not kept or did not stop."""

    session: Session
    command: str
    output: Recorder
    done: Executed | None = None
    error: Exception | None = None
    score: float | None = None
    runs: bool = True

    @property
    def exit(self) -> int:
        return 125 if self.done is None else self.done.exit

    def facts(self) -> Attempt:
        done, said = self.done, None if self.error is None else str(self.error)
        return Attempt(
            branch=self.session.branch,
            command=self.command,
            exit=self.exit,
            by="waypoint" if done is None else done.by,
            output=self.output.finish() if done is None else done.output,
            duration_ms=0.0 if done is None else done.duration_ms,
            score=self.score,
            said=said if done is None else done.said or said,
        )


def _run(call: Call, tries: Sequence[Try], limit: dict[str, float]) -> None:
    def do(one: Try) -> Executed:
        return run_exec(call, one.session.branch, {"text": one.command, **limit}, one.output)

    for one, found in zip(tries, _in_each([lambda one=one: do(one) for one in tries]), strict=True):  # type: ignore[misc]
        one.done = found if isinstance(found, Executed) else None
        one.error = found if isinstance(found, Exception) else None
    call.check()


def _score(call: Call, tries: Sequence[Try], command: str, limit: dict[str, float]) -> None:
    """Run the command `command` in the sessions, and set their scores."""
    scorers = [Try(one.session, command, call.record(DEFAULT_BYTES)) for one in tries]
    _run(call, scorers, limit)
    for one, scorer in zip(tries, scorers, strict=True):
        said = scorer.output.last_line
        try:
            one.score = float(said.split()[-1]) if scorer.exit == 0 else None
        except (ValueError, IndexError):
            one.score = None
        if one.score is None or math.isnan(one.score):
            one.score = None
            said = f"`score` ended with status {scorer.exit}, and its last word is not a number: {said}"
            one.error = scorer.error or UsageProblem("score", one.session.branch, said)


def _result(tries: Sequence[Try], keep: str | None, best: Try | None) -> Tried:
    """Keep the best, end all sessions, and make the table. Without a best, the sessions run on."""
    kept = None
    if keep is not None and best is not None:
        message = "" if best.score is None else f"score {best.score:g}"
        try:
            made = best.session.checkpoint(keep, message=message)
            kept = Best(name=keep, branch=best.session.branch, capture=made.capture)
            _stop(tries)
        except WaypointError as error:
            best.error = error
    running = [one.session.branch for one in tries if one.runs]
    return Tried(attempts=[one.facts() for one in tries], running=running, kept=kept)


def _stop(tries: Sequence[Try]) -> None:
    for one, found in zip(tries, _in_each([one.session.stop for one in tries]), strict=True):
        one.runs = isinstance(found, Exception)
        one.error = found if isinstance(found, Exception) else one.error


def _in_each(work: Sequence[Callable[[], object]]) -> list[object]:
    """Do all of `work` at the same time, each in a thread. Returns what each returned, or its error."""
    found: list[object] = [None] * len(work)

    def do(number: int) -> None:
        try:
            found[number] = work[number]()
        except (WaypointError, OSError, Cancelled) as error:
            found[number] = error

    threads = [threading.Thread(target=do, args=(number,), daemon=True) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
