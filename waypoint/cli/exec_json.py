"""`exec --json`: the whole outcome as one JSON value on stdout."""

import binascii
import time

from waypoint.cli.entry import complain
from waypoint.cli.hot import EXIT_FAILED, forward_signals, write_all
from waypoint.client import plainjson
from waypoint.client.command import Command
from waypoint.model.errors import UsageProblem, WaypointError


def run_for_json(home: str, branch: str, request: dict[str, object]) -> int:
    """Run, print `{exit, by, ended, output, duration_ms}`, return the exit status.

    `output` has bytes that are no UTF-8 replaced; then `output_base64` has them all. A failure of waypoint itself is
    printed too, with `by` "waypoint" and its four parts as `error`. Holds the whole output in memory.
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
        outcome |= {name: end[name] for name in ("exit", "by", "ended", "said") if end.get(name) not in (None, "")}
    except WaypointError as error:
        outcome["error"] = error.to_json()
        complain(str(error))
    outcome |= as_text(bytes(output))
    outcome["duration_ms"] = round((time.monotonic() - began) * 1000, 3)
    write_all(1, memoryview(plainjson.encode(outcome).encode() + b"\n"))
    code = outcome["exit"]
    return code if isinstance(code, int) else EXIT_FAILED


def as_text(output: bytes) -> dict[str, object]:
    """`output`; where bytes of it are no UTF-8 those are replaced, and `output_base64` has them all."""
    try:
        return {"output": output.decode()}
    except UnicodeDecodeError:
        encoded = binascii.b2a_base64(output, newline=False).decode("ascii")
        return {"output": output.decode(errors="replace"), "output_base64": encoded}
