"""Sessions and commands on this process's own terminal: where the proxy and the client's streams meet."""

import sys

from shellwrap.detach_key import DetachKey
from shellwrap.proxy import Outcome, Why, run
from shellwrap.window_size import terminal_size
from waypoint.cli.caller import caller_env
from waypoint.client.attach import Attachment, CommandTerminal

EXIT_SIGNAL = 128
_SIGHUP = 1


def attach(home: str, branch: str) -> int:
    """Show the session here until it ends or is left. The exit status: the shell's, 0 if it was left.

    stdin must be a terminal. Raises WaypointError.
    """
    rows, cols = terminal_size(0)
    attachment = Attachment(home, branch, rows, cols)
    try:
        outcome = run(attachment, size=(rows, cols), detach_key=DetachKey())
    finally:
        attachment.close()
    if outcome.why is Why.OVER:
        return _shell_status(branch, attachment)
    if outcome.why is Why.DETACHED:
        sys.stderr.write(f"\n[detached from {branch}]\n")
        return 0
    return _status_of(outcome)


def run_on_terminal(home: str, branch: str, verb: str, request: dict[str, object]) -> dict[str, object]:
    """`exec --tty` or `run -t` on this terminal; the fields of its `x` frame. Raises WaypointError."""
    rows, cols = terminal_size(0)
    if verb == "run":
        request = {**request, "rows": rows, "cols": cols, "env": caller_env()}
    command = CommandTerminal(home, branch, verb, request)
    try:
        outcome = run(command, size=(rows, cols) if verb == "run" else None)
    finally:
        command.close()
    return command.end if outcome.why is Why.OVER else {"exit": _status_of(outcome), "by": "waypoint"}


def _shell_status(branch: str, attachment: Attachment) -> int:
    if attachment.end.get("reason") == "detached":  # by the daemon: it was asked to, or we did not keep up
        sys.stderr.write(f"\n[detached from {branch}]\n")
        return 0
    code = attachment.end.get("exit")
    if isinstance(code, int):
        return code
    sys.stderr.write(f"\n[session {branch} ended without an exit status]\n")
    return EXIT_SIGNAL


def _status_of(outcome: Outcome) -> int:
    """As a shell reports a program that a signal ended."""
    return EXIT_SIGNAL + (outcome.signal if outcome.why is Why.SIGNALLED else _SIGHUP)
