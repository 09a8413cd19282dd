"""`waypoint attach`, `waypoint logs`, `waypoint ps` and `waypoint stop`."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from waypoint.cli.caller import asker_of, branch_of, home_of, named_branches, require_terminal
from waypoint.cli.output import (
    EXIT_INTERRUPTED,
    agrees,
    error_value,
    note,
    print_error,
    print_json,
    print_lines,
    wants_colour,
    warn,
    warn_lines,
    write_all,
)
from waypoint.client.sdk import Client
from waypoint.model.errors import NotAllowed, UsageProblem, WaypointError
from waypoint.model.outcomes import degraded_lines
from waypoint.model.rendering import full_lines, ports_table, published_address, sessions_table, stop_line
from waypoint.model.session_facts import StopFacts
from waypoint.model.verbs import Given


def attach(given: Given) -> int:
    """Returns the exit status: the shell's if the session ends, 0 after a detach."""
    from waypoint.cli import terminal

    branch = branch_of(given)
    next_step = "use 'waypoint exec' to run a command in the session, 'waypoint logs' to see its output"
    require_terminal("attach to", f"branch {branch}", next_step)
    return terminal.attach(home_of(given), branch, asker_of(given))


def logs(given: Given) -> int:
    """On a terminal, only what `ReplayFilter` shows."""
    from shellwrap.replay_filter import ReplayFilter
    from shellwrap.screen_undo import ScreenUndo

    undo, replay = ScreenUndo(), ReplayFilter()
    is_terminal = os.isatty(1)
    try:
        for piece in Client(given.text("home")).session(branch_of(given)).logs(follow=given.flag("follow")):
            shown = replay.feed(piece) if is_terminal else piece
            write_all(1, memoryview(shown))
            if is_terminal:
                undo.feed(shown)
    finally:
        if is_terminal:
            write_all(1, memoryview(undo.undo()))
    return 0


def ps(given: Given) -> int:
    client = Client(given.text("home"))
    sessions = client.sessions(all=given.flag("all"))
    if given.flag("json"):
        print_json(sessions)
    elif sessions:
        print_lines(sessions_table(sessions, coloured=wants_colour()))
    else:
        note("no sessions; 'waypoint shell' starts one")
    warn("cannot be reached", [f"{one.branch}: {one.said}" for one in sessions if one.said])
    warn("nearly full", full_lines(client.status(), sessions))
    report_strangers(client)
    return 0


def port(given: Given) -> int:
    session, asked = Client(given.text("home")).session(branch_of(given)), given.text("port")
    if asked is None:
        if given.flag("close"):
            raise UsageProblem("close a port of", f"branch {session.branch}", "PORT is missing", "name the port, too")
        found = session.ports()
    elif given.flag("close"):
        session.close_port(asked)
        found = []
    else:
        found = [session.publish(asked)]
    if given.flag("json"):
        print_json(found)
    elif asked is not None:
        print_lines([published_address(one) for one in found])
    elif found:
        print_lines(ports_table(found, coloured=wants_colour()))
    else:
        note(f"no program of {session.branch} listens on a port")
    warn("not forwarded", sorted({one["said"] for one in found if one.get("said")}))
    return 0


def stop(given: Given) -> int:
    """Stop all named sessions; none if a name is unknown. If a session cannot be stopped, the others still are. Returns
    the exit status: that of the first failure; 130 if the user refused a discard. With `--json` and a failure, the
    value is `{error, stopped}`.

    With `--all`, sessions that this user may not stop are left running.
    """
    client, name = Client(given.text("home")), given.text("checkpoint")
    branches, discard = _branches(client, given), given.flag("discard")
    keeps_programs = not (discard or given.flag("files") or name is not None)
    stopped: list[StopFacts] = []
    first: WaypointError | None = None
    of_others = 0
    for unknown in _unknown(client, branches) if not given.flag("all") else ():
        print_error(str(unknown))
        first = first or unknown
    agreed = _agreed(client, branches, given) if first is None else []
    for branch in agreed:
        try:
            stopped.append(client.session(branch).stop(discard=discard, checkpoint=name, keep_programs=keeps_programs))
        except WaypointError as error:
            if given.flag("all") and isinstance(error, NotAllowed):
                of_others += 1
                continue
            print_error(str(error))
            first = first or error
    if of_others:
        print_error(f"did not stop {of_others} sessions of other users")
    if given.flag("json"):
        print_json(stopped if first is None else {**error_value(first), "stopped": stopped})
    else:
        for one in stopped:
            print_lines([stop_line(one)])
        for one in stopped:
            warn_lines(degraded_lines(dataclasses.asdict(one)))
    if first is not None:
        return first.exit_code
    return 0 if agreed == branches else EXIT_INTERRUPTED


def _agreed(client: Client, branches: list[str], given: Given) -> list[str]:
    """Return the branches that the user agrees to stop: with --discard asks on a terminal, unless --yes was given."""
    if not given.flag("discard") or given.flag("yes") or not (os.isatty(0) and os.isatty(2)):
        return branches
    return [branch for branch in branches if _agrees_to_discard(client, branch)]


def _agrees_to_discard(client: Client, branch: str) -> bool:
    """Whether the user agrees to lose the changes of a session; True without asking if there are none."""
    changed, names = 0, []
    with contextlib.suppress(WaypointError):  # the branch has no session, or no capture
        changed = sum(one.kind == "file" for one in client.history.diff(branch, lines=False))
        own = [capture for capture in client.history.log(branch) if capture.branch == branch]
        names = [name for capture in own for name in capture.names if name != branch]
    if not changed and not names:
        return True
    left = f"; checkpoints remain: {', '.join(names)}" if names else ""
    if agrees(f"{branch} has {changed} changed files; nothing brings them back{left}. Discard the session?"):
        return True
    note(f"{branch}: not discarded")
    return False


def _branches(client: Client, given: Given) -> list[str]:
    """Return the branches to stop. Raises UsageProblem if the options contradict each other."""
    stop_all, named = given.flag("all"), named_branches(given)
    if stop_all and named:
        said = "--all cannot be combined with the names of branches"
        raise UsageProblem("stop", " ".join(named), said, "leave out one of them")
    if given["checkpoint"] is not None and (stop_all or len(named) > 1):
        said = "--checkpoint takes the name of one checkpoint, so only one session can be stopped"
        raise UsageProblem("stop", " ".join(named) or "--all", said, "give one branch")
    if given.flag("files") and (given.flag("discard") or given["checkpoint"] is not None):
        other = "--discard" if given.flag("discard") else "--checkpoint"
        raise UsageProblem("stop", "--files", f"it cannot be combined with {other}", "leave out one of them")
    if stop_all:
        return [session.branch for session in client.sessions()]
    return named or [branch_of(given)]


def _unknown(client: Client, branches: list[str]) -> Iterator[UsageProblem]:
    """Yield an error for each of several branches that does not exist. A single branch needs no check before its
    stop.
    """
    for branch in branches if len(branches) > 1 else ():
        try:
            client.session(branch).refresh()
        except UsageProblem as error:
            yield error
        except WaypointError:  # such as a session that has ended: its stop reports that
            continue


def report_strangers(client: Client, *, each: bool = False) -> None:
    """Report files and processes of the home that its names.db does not know on stderr. `each`: list them."""
    try:
        found = client.strangers()
    except UsageProblem:  # a daemon of an earlier version does not know this request
        return
    if not found:
        return
    running = len({one.id for one in found if one.kind == "processes"})
    which = f"{len({one.id for one in found})} captures or sessions"
    runs = f" ({running} of them running)" if running else ""
    note(f"waypoint: the home {client.home} has {which}{runs} that its names.db does not know; they are kept")
    if each:
        for one in found:
            note(f"  {one.kind:<10}{one.path}")
    else:
        note("  'waypoint doctor' lists them")
    note(
        "  next: if another names.db knows them, run 'waypoint daemon stop' and put that file back; otherwise "
        "'waypoint gc' removes them"
    )
