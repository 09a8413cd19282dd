"""`exec --json` and `run --json`: the result of a command as one JSON value on stdout."""

import binascii
import time

from waypoint.cli.fast.streaming import error_of, forward_signals, report_return
from waypoint.cli.output import EXIT_FAILED, error_value, print_error, print_json
from waypoint.client.command import Command
from waypoint.model.errors import UsageProblem, WaypointError


def run_for_json(home: str, branch: str, verb: str, request: dict[str, object]) -> int:
    """Run the command, print `{exit, by, ended, output, duration_ms}`, and return the exit status. `run` has `stdout`
    and `stderr` in place of `output`.

    Further fields, if they apply: `said` (why waypoint ended the command) and `signal` (the last one it sent);
    `new_shell` (true: the command has ended the session's shell, and a new one with its state has replaced it) and
    `state_lost` (true: without its state); `degraded`: why Waypoint itself has ended the shell;
    `returned`: what the session lacks since this command has brought it back. Bytes are as in `as_text`. If waypoint
    itself failed, `by` is "waypoint" and `error` has the parts of the error; of a process that could not be started,
    `said` has the reason. The whole output is held in memory.
    """
    if request["tty"]:
        raise UsageProblem("use", "--json", "it cannot be combined with --tty", "leave out one of them")
    began = time.monotonic()
    output, errors = bytearray(), bytearray()
    outcome: dict[str, object] = {"exit": EXIT_FAILED, "by": "waypoint", "ended": False}
    try:
        command = Command(home, branch, verb, request)
        forward_signals(command)
        end = command.wait(
            output.extend, output.extend if verb == "exec" else errors.extend, 0 if request.get("stdin") else -1
        )
        outcome |= {
            name: end[name] for name in ("exit", "by", "ended", "said", "signal") if end.get(name) not in (None, "")
        }
        outcome |= {name: True for name in ("new_shell", "state_lost") if end.get(name) is True}
        outcome |= {name: end[name] for name in ("degraded", "returned") if end.get(name)}
        report_return(end)
        failed = error_of(home, branch, end) if verb == "exec" else None
    except WaypointError as error:
        failed = error
    exit_code = outcome["exit"]
    code = exit_code if isinstance(exit_code, int) else EXIT_FAILED
    if failed is not None:
        outcome = error_value(failed, code) | outcome
        print_error(str(failed))
    if verb == "exec":
        outcome |= as_text(bytes(output))
    else:
        outcome |= as_text(bytes(output), "stdout") | as_text(bytes(errors), "stderr")
    outcome["duration_ms"] = round((time.monotonic() - began) * 1000, 3)
    print_json(outcome)
    return code


def as_text(output: bytes, name: str = "output") -> dict[str, object]:
    """Return the bytes for JSON: the field `name` as text. If they are not UTF-8, wrong bytes are replaced in the text,
    and the field NAME_base64 has all bytes unchanged.
    """
    try:
        return {name: output.decode()}
    except UnicodeDecodeError:
        encoded = binascii.b2a_base64(output, newline=False).decode("ascii")
        return {name: output.decode(errors="replace"), f"{name}_base64": encoded}
