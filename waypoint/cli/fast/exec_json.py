"""`exec --json` and `run --json`: the result of a command as one JSON value on stdout."""

import binascii
import time

from waypoint.cli.fast.streaming import error_of, forward_signals, report_return
from waypoint.cli.output import EXIT_FAILED, error_value, print_error, print_json
from waypoint.client.command import Command
from waypoint.model.errors import UsageProblem, WaypointError


def run_for_json(home: str, branch: str, verb: str, request: dict[str, object]) -> int:
    """Run the command, print the result, which always has the same fields, and return the exit status.

    `exit`, `by`: the status, and who set it. `ended`: whether the session has ended. `said`: why waypoint ended the
    command. `signal`: the last one that waypoint sent. `output`, of `run` `stdout` and `stderr`: as in `as_text`.
    `returned`: what the session lacks since this command has brought it back. `error`: its parts, if waypoint itself
    failed; then `by` is "waypoint", and of a process that could not be started, `said` has the reason. Of `exec`:
    `new_shell`: the command has ended the session's shell, and a new one with its state has replaced it; `state_lost`:
    without its state; `degraded`: why Waypoint itself has ended the shell. The whole output is held in memory.
    """
    if request["tty"]:
        raise UsageProblem("use", "--json", "it cannot be combined with --tty", "leave out one of them")
    began = time.monotonic()
    output, errors = bytearray(), bytearray()
    outcome = nothing_of(verb) | {"exit": EXIT_FAILED}
    try:
        command = Command(home, branch, verb, request)
        forward_signals(command)
        end = command.wait(
            output.extend, output.extend if verb == "exec" else errors.extend, 0 if request.get("stdin") else -1
        )
        outcome |= {name: end[name] for name in outcome if end.get(name) not in (None, "")}
        report_return(end)
        failed = error_of(home, branch, end) if verb == "exec" else None
    except WaypointError as error:
        failed = error
    exit_code = outcome["exit"]
    code = exit_code if isinstance(exit_code, int) else EXIT_FAILED
    outcome |= {"error": None} if failed is None else error_value(failed, code)
    if failed is not None:
        print_error(str(failed))
    if verb == "exec":
        outcome |= as_text(bytes(output))
    else:
        outcome |= as_text(bytes(output), "stdout") | as_text(bytes(errors), "stderr")
    outcome["duration_ms"] = round((time.monotonic() - began) * 1000, 3)
    print_json(outcome)
    return code


def nothing_of(verb: str) -> dict[str, object]:
    """The result, without `error`, of a command that has not run yet; `exit` is null."""
    streams = ("output",) if verb == "exec" else ("stdout", "stderr")
    found: dict[str, object] = {"exit": None, "by": "waypoint", "ended": False, "said": None, "signal": None}
    found |= {"new_shell": False, "state_lost": False, "degraded": []} if verb == "exec" else {}
    found["returned"] = []
    for name in streams:
        found |= as_text(b"", name)
    return found | {"duration_ms": 0.0}


def as_text(output: bytes, name: str = "output") -> dict[str, object]:
    """Return the bytes for JSON: the field `name` as text. If they are not UTF-8, wrong bytes are replaced in the text,
    and the field NAME_base64, which is null otherwise, has all bytes unchanged.
    """
    try:
        return {name: output.decode(), f"{name}_base64": None}
    except UnicodeDecodeError:
        encoded = binascii.b2a_base64(output, newline=False).decode("ascii")
        return {name: output.decode(errors="replace"), f"{name}_base64": encoded}
