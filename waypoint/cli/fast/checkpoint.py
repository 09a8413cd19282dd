"""`waypoint checkpoint`."""

from waypoint.cli.caller import branch_of, home_of
from waypoint.cli.fast.answers import checkpoint_of, tell_degraded
from waypoint.cli.output import print_json, print_lines
from waypoint.client.link import ask, quote_branch
from waypoint.client.quoting import as_json_text
from waypoint.model.names import parse_name
from waypoint.model.verbs.told import SHORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.verbs import Given


def run(given: "Given") -> int:
    """Returns the exit status. Raises WaypointError."""
    body = {
        "name": parse_name(given.required("name")),
        "message": as_json_text(given.text("message") or ""),
        "tier": given.text("tier") or "auto",
        "force": given.flag("force"),
        "park": given.flag("park"),
    }
    target = f"/v1/sessions/{quote_branch(branch_of(given))}/checkpoint"
    made = checkpoint_of(ask(home_of(given), "POST", target, body, may_repeat=False))
    if given.flag("json"):
        print_json(made)
        return 0
    capture, paused_ms = str(made["capture"])[:SHORT], made["paused_ms"]
    print_lines([f"{made['name']}  {capture}  {made['tier']}  paused {paused_ms:.0f} ms"])
    tell_degraded(made)
    return 0
