"""The tools that run commands in one session."""

import time
from typing import Annotated, Literal

from msgspec import Meta

from waypoint.agents.mcp.calls import Call
from waypoint.agents.mcp.outputs import DEFAULT_BYTES, Recorder
from waypoint.agents.mcp.results import Executed, Page, Ran
from waypoint.agents.mcp.toolbox import tool
from waypoint.agents.mcp.words import Branch, Cwd, Env, MaxBytes, Stdin, Timeout
from waypoint.client.results import EXIT_TIMEOUT, how_ended
from waypoint.model.errors import Failed, StateConflict, WaypointError
from waypoint.model.paths import spelled

By = Literal["command", "waypoint"]


@tool("exec", "Run a command line in the session's shell", "destroys", open_world=True)
def execute(
    call: Call,
    *,
    branch: Branch,
    command: Annotated[str, Meta(description="Shell text; cd, export and functions last.")],
    timeout_s: Timeout | None = None,
    wait_prompt_s: Annotated[float, Meta(ge=0, description="How long to wait for a busy shell (default 5).")]
    | None = None,
    cwd: Cwd | None = None,
    env: Env | None = None,
    stdin: Stdin | None = None,
    max_bytes: MaxBytes = DEFAULT_BYTES,
) -> Executed:
    """Run a command line in the session's own shell, and wait for its end. Folder, variables, functions and background
    jobs stay for the next command. Cancelling the call interrupts the command. `output` has stdout and stderr.
    """
    request: dict[str, object] = {"text": command, "stdin": stdin is not None}
    request |= {"timeout_s": timeout_s} if timeout_s is not None else {}
    request |= {"wait_prompt_s": wait_prompt_s} if wait_prompt_s is not None else {}
    request |= {"cwd": cwd} if cwd is not None else {}
    request |= {"env": env} if env else {}
    return run_exec(call, branch, request, call.record(max_bytes), stdin)


def run_exec(
    call: Call, branch: str, request: dict[str, object], output: Recorder, stdin: str | None = None
) -> Executed:
    """Run the command of a request. Raises the error if Waypoint could not run it or has lost it."""
    began = time.monotonic()
    with call.follow(branch, "exec", {"tty": False, **request}) as running:
        end = running.wait(output, output, _encoded(stdin))
    how = how_ended(end)
    error = error_of(call.home, branch, end)
    if error is not None:
        raise error
    return Executed(
        exit=how.exit,
        by=_by(how.by),
        output=output.finish(),
        duration_ms=_since(began),
        ended=how.ended,
        said=how.said or None,
        new_shell=end.get("new_shell") is True,
        state_lost=end.get("state_lost") is True,
    )


@tool("run", "Run a separate process in the session", "destroys", open_world=True)
def run(
    call: Call,
    *,
    branch: Branch,
    argv: Annotated[list[str], Meta(min_length=1, description="The program and its arguments.")],
    cwd: Cwd | None = None,
    env: Env | None = None,
    stdin: Stdin | None = None,
    max_bytes: MaxBytes = DEFAULT_BYTES,
) -> Ran:
    """Run a program beside the session's shell, also while the shell is busy. Returns stdout and stderr separately."""
    began = time.monotonic()
    output, errors = call.record(max_bytes), call.record(max_bytes)
    request: dict[str, object] = {"argv": argv, "stdin": stdin is not None, "cwd": cwd, "env": env or {}}
    with call.follow(branch, "run", request) as running:
        how = how_ended(running.wait(output, errors, _encoded(stdin)))
    return Ran(
        exit=how.exit,
        by=_by(how.by),
        stdout=output.finish(),
        stderr=errors.finish(),
        duration_ms=_since(began),
        said=how.said or None,
    )


@tool("output", "Read on in a long output", "reads")
def output_page(
    call: Call,
    *,
    cursor: Annotated[str, Meta(description="`cursor` of a result.")],
    max_bytes: MaxBytes = DEFAULT_BYTES,
) -> Page:
    """Read the part of an output that was too long for the result of its tool."""
    return call.read_on(cursor, max_bytes)


def error_of(home: str, branch: str, end: dict[str, object]) -> WaypointError | None:
    """The error in `end`, the fields of an exec's `x` frame; None if the command ended by itself or at its timeout."""
    said, code = str(end.get("said") or ""), str(end.get("code") or "")
    if end.get("by") != "waypoint" or end.get("exit") == EXIT_TIMEOUT or not said:
        return None
    on = f"branch {branch}"
    if end.get("ended"):
        return Failed("follow the command on", on, said, f"to continue: {spelled(home, 'shell', branch)}", code=code)
    step = "wait until its shell is idle (wait_prompt_s), or run a separate process with the tool `run`"
    return StateConflict("run the command on", on, said, step, code=code)


def _by(word: str) -> By:
    return "waypoint" if word == "waypoint" else "command"


def _encoded(stdin: str | None) -> bytes | None:
    return None if stdin is None else stdin.encode(errors="surrogatepass")


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 3)
