"""Sessions and commands on this process's own terminal: where the proxy and the client's streams meet."""

import os
import sys

from shellwrap.detach_key import DetachKey
from shellwrap.local_terminal import terminal_size
from shellwrap.proxy import Outcome, Why, run
from waypoint.client.attach import Attachment, CommandTerminal
from waypoint.client.sdk import Session
from waypoint.model.errors import UsageProblem

EXIT_SIGNAL = 128
_SIGHUP = 1
# What a session takes of its caller's environment (docs/protocol.md, section 1).
_TAKEN = frozenset({"TERM", "COLORTERM", "LANG", "TZ"})


def caller_env() -> dict[str, str]:
    """What of our own environment tells a session how this terminal and this person speak."""
    return {name: value for name, value in os.environ.items() if name in _TAKEN or name.startswith("LC_")}


def require_terminal(tried: str, on: str, next_step: str) -> None:
    """Raise UsageProblem if stdin is no terminal."""
    if not os.isatty(0):
        raise UsageProblem(tried, on, "stdin is not a terminal", next_step)


def attach(session: Session) -> int:
    """Show the session here until it ends or is left. The exit status: the shell's, 0 if it was left.

    stdin must be a terminal. Raises WaypointError.
    """
    rows, cols = terminal_size(0)
    attachment = session.attach(rows, cols)
    try:
        outcome = run(attachment, size=(rows, cols), detach_key=DetachKey())
    finally:
        attachment.close()
    if outcome.why is Why.OVER:
        return _shell_status(session, attachment)
    if outcome.why is Why.DETACHED:
        sys.stderr.write(f"\n[detached from {session.branch}]\n")
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


def _shell_status(session: Session, attachment: Attachment) -> int:
    if attachment.end.get("reason") == "detached":  # by the daemon: it was asked to, or we did not keep up
        sys.stderr.write(f"\n[detached from {session.branch}]\n")
        return 0
    code = attachment.end.get("exit")
    if isinstance(code, int):
        return code
    sys.stderr.write(f"\n[session {session.branch} ended without an exit status]\n")
    return EXIT_SIGNAL


def _status_of(outcome: Outcome) -> int:
    """As a shell reports a program that a signal ended."""
    return EXIT_SIGNAL + (outcome.signal if outcome.why is Why.SIGNALLED else _SIGHUP)
