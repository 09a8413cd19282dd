"""Shows sessions and commands on this process's terminal. shellwrap's proxy copies between terminal and daemon."""

import os
from collections.abc import Mapping

from shellwrap.detach_key import DetachKey
from shellwrap.proxy import Outcome, Why, run
from shellwrap.window_size import terminal_size
from waypoint.cli.caller import caller_env, sudo_caller
from waypoint.cli.output import note
from waypoint.client.attach import Attachment, CommandTerminal
from waypoint.model.errors import one_line
from waypoint.model.outcomes import SHORT
from waypoint.model.users import user_name

EXIT_SIGNAL = 128
_SIGHUP = 1


def attach(home: str, branch: str, asker: dict[str, object]) -> int:
    """Show the session on this terminal until it ends or the user detaches. Returns the exit status: the shell's, or 0
    after a detach. Prints a greeting, and at the end what is kept.

    `asker`: the fields of the request that name the session's owner. stdin must be a terminal.
    """
    rows, cols = terminal_size(0)
    attachment = Attachment(home, branch, rows, cols, asker, _greeting)
    try:
        outcome = run(attachment, size=(rows, cols), detach_key=DetachKey())
    finally:
        attachment.close()
    if outcome.why is Why.OVER:
        return _shell_status(branch, attachment)
    if outcome.why is Why.DETACHED:
        return _say_detached(branch)
    return _status_of(outcome)


def run_on_terminal(home: str, branch: str, verb: str, request: dict[str, object]) -> dict[str, object]:
    """Run an `exec --tty` or `run -t` on this terminal. Returns the fields of its `x` frame."""
    rows, cols = terminal_size(0)
    request = {**request, "rows": rows, "cols": cols}
    if verb == "run":
        asked = request.get("env")
        request["env"] = {**caller_env(), **(asked if isinstance(asked, dict) else {})}
    command = CommandTerminal(home, branch, verb, request)
    try:
        outcome = run(command, size=(rows, cols))
    finally:
        command.close()
    return command.end if outcome.why is Why.OVER else {"exit": _status_of(outcome), "by": "waypoint"}


def _shell_status(branch: str, attachment: Attachment) -> int:
    if attachment.end.get("reason") == "detached":  # by the daemon, on request or because this client was too slow
        return _say_detached(branch)
    code = attachment.end.get("exit")
    note(f"\n[{_farewell(branch, attachment.end)}]")
    if attachment.end.get("kept") and attachment.end.get("changed"):
        note(f"[{_ways_out(branch, attachment.end)}]")
    return code if isinstance(code, int) else EXIT_SIGNAL


def _say_detached(branch: str) -> int:
    """Returns the exit status."""
    note(f"\n[detached from {branch}]\n[the session is still running; to return: waypoint attach {branch}]")
    return 0


def _greeting(session: Mapping[str, object]) -> bytes:
    """Return the line shown at the start. `session`: as in the note of docs/protocol.md, section 2."""
    base, shared = session.get("base"), session.get("shared")
    of = "this machine" if base == "/" else str(base)
    but = f", except {', '.join(map(str, shared))}" if isinstance(shared, list) and shared else ""
    user = str(session.get("user") or "")
    whose = f" (a session of the user {user})" if user and user != (sudo_caller() or user_name(os.geteuid())) else ""
    said = f"{session.get('branch')}{whose}: everything here is a copy of {of}{but}. To end: exit. To detach: Ctrl-] d"
    return f"[{one_line(said)}]\r\n".encode(errors="backslashreplace")


def _farewell(branch: str, end: Mapping[str, object]) -> str:
    """Return the line shown at the end. `end`: the fields of the `x` frame."""
    ended = f"{branch} has ended" if isinstance(end.get("exit"), int) else f"{branch} was stopped or killed"
    if "kept" not in end:  # the end could not be recorded, or the daemon has an earlier version
        return ended
    kept, changed = end["kept"], end.get("changed")
    if not isinstance(kept, dict):
        before = f"; to continue from its state before: waypoint shell {branch}" if end.get("before") else ""
        return f"{ended}; nothing is kept{before}"
    files = "1 file" if changed == 1 else f"{changed} files"
    more = "more than " if end.get("more") else ""
    what = f" ({more}{files} changed)" if isinstance(changed, int) else ""
    how = " with its processes" if kept.get("tier") == "live" else ""
    capture = str(kept.get("capture"))[:SHORT]
    go_on = f"waypoint shell NEW --from {capture}" if end.get("undone") else f"waypoint shell {branch}"
    return f"{ended}; kept as {capture}{how}{what}; to continue: {go_on}"


def _ways_out(branch: str, end: Mapping[str, object]) -> str:
    """Return the line about the changed files. `end`: as for `_farewell`."""
    folders = end.get("folders")
    where = f"changes in {', '.join(map(str, folders))}; " if isinstance(folders, list) and folders else ""
    return one_line(
        f"{where}to see them: waypoint diff {branch}; to bring them onto this machine: waypoint apply {branch}"
    )


def _status_of(outcome: Outcome) -> int:
    """Return the exit status that a shell reports for a program ended by this signal (SIGHUP if unknown)."""
    return EXIT_SIGNAL + (outcome.signal if outcome.why is Why.SIGNALLED else _SIGHUP)
