"""`waypoint checkpoint`."""

import os

from waypoint.cli.caller import branch_of, home_of
from waypoint.cli.fast.answers import checkpoint_of, tell_degraded
from waypoint.cli.output import print_json, print_lines
from waypoint.client.link import ask, quote_branch
from waypoint.client.quoting import as_json_text
from waypoint.model.names import parse_attached, parse_name
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
        "lose_processes": given.flag("lose_processes"),
        "wait": given.flag("wait"),
    }
    made = checkpoint_of(_asked_and_shown(given, body) if given.flag("wait") else _ask(given, body))
    if given.flag("json"):
        print_json(made)
        return 0
    capture, paused_ms = str(made["capture"])[:SHORT], made["paused_ms"]
    image = f"  image {str(made['image'])[:SHORT]}" if given.flag("wait") else ""
    print_lines([f"{made['name']}  {capture}  {made['tier']}  paused {paused_ms:.0f} ms{image}"])
    tell_degraded(made)
    return 0


def _asked_and_shown(given: "Given", body: dict[str, object]) -> object:
    """As `_ask`, with a progress bar on a terminal."""
    if not os.isatty(2):
        return _ask(given, body)
    from waypoint.cli.progress import storing_shown  # slow to load

    with storing_shown(home_of(given)):
        return _ask(given, body)


def _ask(given: "Given", body: dict[str, object]) -> object:
    home, branch = home_of(given), branch_of(given)
    if given.texts("attach"):
        from waypoint.cli import progress  # slow to load
        from waypoint.client.attached.attaching import ToAttach, checkpoint_with

        with progress.shown("attach") as bar:
            return checkpoint_with(home, branch, body, ToAttach(parse_attached(given.texts("attach")), bar.add))
    return ask(home, "POST", f"/v1/sessions/{quote_branch(branch)}/checkpoint", body, may_repeat=False)
