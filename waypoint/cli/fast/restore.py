"""`waypoint restore`."""

from waypoint.cli.caller import branch_of, home_of
from waypoint.cli.fast.answers import forks_of, session_of, tell_degraded, tell_left_out
from waypoint.cli.output import print_json, print_lines, tell_lines
from waypoint.client.link import ask, quote_branch
from waypoint.model.errors import UsageProblem
from waypoint.model.names import parse_attached, parse_name
from waypoint.model.verbs.told import told_replaced

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.verbs import Given


def run(given: "Given") -> int:
    """Returns the exit status. Raises WaypointError."""
    home, name, new = home_of(given), parse_name(given.required("name")), given.text("new")
    attach_at = parse_attached(given.texts("attach_at"))
    if new is None:
        # Without --branch the daemon chooses: it knows which branch NAME was taken on.
        target = "/v1/restores" if given["branch"] is None else f"/v1/sessions/{quote_branch(branch_of(given))}/restore"
        body: dict[str, object] = {"name": name, "only": given["only"], "lose_processes": given.flag("lose_processes")}
        body |= {"tier": given["tier"], "attach_at": attach_at}
        answer = ask(home, "POST", target, body, may_repeat=False)
        session = session_of(answer)
    else:
        _check_beside(given)
        body = {"name": name, "branches": [parse_name(new)], "tier": given["tier"], "attach_at": attach_at}
        answer = ask(home, "POST", "/v1/forks", body, may_repeat=False)
        (fork,) = forks_of(answer)
        session = session_of(fork)
    tell_left_out(session)
    if given.flag("json"):
        print_json(session)
    else:
        print_lines([str(session["branch"])])
        tell_lines(told_replaced(session))
        tell_degraded(session)
    return 0


def _check_beside(given: "Given") -> None:
    on = f"--new {given['new']}"
    if given["branch"] is not None:
        raise UsageProblem(
            "restore with", on, "--branch names a branch to restore on in place", "leave one of them out"
        )
    if given["only"] is not None:
        next_step = f"for the files alone: waypoint shell {given['new']} --from {given['name']} --tier files"
        raise UsageProblem("restore with", on, "--only is for a branch that exists", next_step)
