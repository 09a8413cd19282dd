"""`waypoint stop`."""

import dataclasses

from waypoint.cli.caller import branch_of, named_branches
from waypoint.cli.output import complain, error_value, print_json, print_lines, tell_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import NotAllowed, UsageProblem, WaypointError
from waypoint.model.facts import StopFacts
from waypoint.model.verbs import Given
from waypoint.model.verbs.told import told


def run(given: Given) -> int:
    """Stop all sessions that are meant, even if one cannot be stopped. Returns the exit status: that of the first
    failure. Raises UsageProblem. With `--json` and a failure, the value is `{error, stopped}`.

    `--all`, of a user who may not stop the sessions of others, means the sessions that this user may stop.
    """
    client, checkpoint = Client(given.text("home")), given.text("checkpoint")
    stopped: list[StopFacts] = []
    first: WaypointError | None = None
    of_others = 0
    for branch in _branches(client, given):
        try:
            stopped.append(client.session(branch).stop(discard=given.flag("discard"), checkpoint=checkpoint))
        except WaypointError as error:
            if given.flag("all") and isinstance(error, NotAllowed):
                of_others += 1
                continue
            complain(str(error))
            first = first or error
    if of_others:
        complain(f"left {of_others} of other users")
    if given.flag("json"):
        print_json(stopped if first is None else {**error_value(first), "stopped": stopped})
    else:
        for one in stopped:
            print_lines([f"{one.branch}  {f'kept as {one.capture[:12]}' if one.capture else 'discarded'}"])
        for one in stopped:
            tell_lines(told(dataclasses.asdict(one)))
    return first.exit_code if first is not None else 0


def _branches(client: Client, given: Given) -> list[str]:
    """The branches to be stopped. Raises UsageProblem if the options contradict each other."""
    stop_all, named = given.flag("all"), named_branches(given)
    if stop_all and named:
        raise UsageProblem("stop", " ".join(named), "--all and names of branches exclude each other", "leave one out")
    if given["checkpoint"] is not None and (stop_all or len(named) > 1):
        said = "--checkpoint names what is kept of one session"
        raise UsageProblem("stop", " ".join(named) or "--all", said, "give one branch")
    if stop_all:
        return [session.branch for session in client.sessions()]
    return named or [branch_of(given)]
