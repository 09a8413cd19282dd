"""`exec --json`: the outcome of a command as one JSON value on stdout."""

import binascii
import time

from waypoint.cli.caller import with_meant
from waypoint.cli.fast.failed_command import error_of
from waypoint.cli.fast.streaming import forward_signals
from waypoint.cli.output import EXIT_FAILED, complain, error_value, print_json
from waypoint.client.command import Command
from waypoint.model.errors import UsageProblem, WaypointError


def run_for_json(home: str, branch: str, request: dict[str, object]) -> int:
    """Run the command, print `{exit, by, ended, output, duration_ms}`, and return the exit status. Where it has a
    meaning, `said` (why waypoint ended the command), `signal` (by what), `new_shell` (true: the command has ended
    the session's shell, and a new one with its state has taken its place) and `state_lost` (true: without its state,
    which could not be written or is too large) are printed, too.

    `output` and `output_base64` are as in `as_text`. A failure of waypoint itself is printed too, with `by` "waypoint"
    and its four parts as `error`. Holds the whole output in memory. Raises UsageProblem for `--tty`.
    """
    if request["tty"]:
        raise UsageProblem("run with", "--json", "it cannot be combined with --tty", "leave one of them out")
    began = time.monotonic()
    output = bytearray()
    outcome: dict[str, object] = {"exit": EXIT_FAILED, "by": "waypoint", "ended": False}
    try:
        command = Command(home, branch, "exec", request)
        forward_signals(command)
        end = command.wait(output.extend, output.extend, 0 if request.get("stdin") else -1)
        outcome |= {
            name: end[name] for name in ("exit", "by", "ended", "said", "signal") if end.get(name) not in (None, "")
        }
        outcome |= {name: True for name in ("new_shell", "state_lost") if end.get(name) is True}
        failed = error_of(home, branch, end)
    except WaypointError as error:
        failed = with_meant(error)
    if failed is not None:
        outcome = error_value(failed) | outcome
        complain(str(failed))
    outcome |= as_text(bytes(output))
    outcome["duration_ms"] = round((time.monotonic() - began) * 1000, 3)
    print_json(outcome)
    code = outcome["exit"]
    return code if isinstance(code, int) else EXIT_FAILED


def as_text(output: bytes) -> dict[str, object]:
    """The bytes `output` for JSON: `output`, as text. If they are not UTF-8, the bytes at fault are replaced in the
    text, and `output_base64` has all bytes unchanged.
    """
    try:
        return {"output": output.decode()}
    except UnicodeDecodeError:
        encoded = binascii.b2a_base64(output, newline=False).decode("ascii")
        return {"output": output.decode(errors="replace"), "output_base64": encoded}
