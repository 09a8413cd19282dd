"""`waypoint stop`."""

from waypoint.cli.caller import branch_of, named_branches, with_meant
from waypoint.cli.output import complain, error_value, note, print_json, print_lines, tell_lines
from waypoint.client.sdk import Client
from waypoint.model import plainjson
from waypoint.model.errors import NotAllowed, UsageProblem, WaypointError, from_json
from waypoint.model.verbs import Given
from waypoint.model.verbs.told import told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.facts import StopFacts


def run(given: Given) -> int:
    """Stop all sessions that are meant; none if a name is wrong. Returns the exit status: that of the first failure.
    Raises UsageProblem. With `--json` and a failure, the value is `{error, stopped}`.

    `--all`, of a user who may not stop the sessions of others, means the sessions that this user may stop.
    """
    client = Client(given.text("home"))
    stopped, errors = _stop(client, given)
    of_others = [error for error in errors if given.flag("all") and isinstance(error, NotAllowed)]
    errors = [error for error in errors if error not in of_others]
    for error in errors:
        complain(str(with_meant(error)))
    if len(errors) < len(set(named_branches(given))) and errors and not stopped:  # a wrong name among others
        note("no session was ended")
    if of_others:
        complain(f"left {len(of_others)} of other users")
    first = errors[0] if errors else None
    if given.flag("json"):
        print_json(stopped if first is None else {**error_value(first), "stopped": stopped})
    else:
        for one in stopped:
            print_lines([f"{one.branch}  {f'kept as {one.capture[:12]}' if one.capture else 'discarded'}"])
        for one in stopped:
            tell_lines(told(plainjson.fields(one)))
    return first.exit_code if first is not None else 0


def _stop(client: Client, given: Given) -> "tuple[list[StopFacts], list[WaypointError]]":
    """What became of each session that is meant, and the errors of those that could not be stopped."""
    branches, discard = _branches(client, given), given.flag("discard")
    if not branches:
        return [], []
    if len(branches) > 1:
        found = client.stop(*branches, discard=discard, if_live=given.flag("all"))
        return found.stopped, [from_json(error) for error in found.failed]
    try:
        return [client.session(branches[0]).stop(discard=discard, checkpoint=given.text("checkpoint"))], []
    except WaypointError as error:
        return [], [error]


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
