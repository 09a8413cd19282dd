"""`waypoint fork`."""

from waypoint.cli.caller import home_of
from waypoint.cli.fast.answers import forks_of, session_of, tell_degraded
from waypoint.cli.output import print_json, print_lines
from waypoint.client.link import ask
from waypoint.client.quoting import exec_text
from waypoint.model.names import parse_attached, parse_name
from waypoint.model.verbs.told import HEADINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.verbs import Given


def run(given: "Given") -> int:
    """Returns the exit status: 1 if the command failed in one of the forks. Raises WaypointError."""
    home, words = home_of(given), given.texts("words")
    if words:
        exec_text(words)  # raises, before anything is forked, if the words cannot be sent
    prefix = given.text("prefix")
    body: dict[str, object] = {
        "name": parse_name(given.required("name")),
        "branches": [parse_name(branch) for branch in given.texts("branches")],
        "count": given["count"],
        "prefix": None if prefix is None else parse_name(prefix),
        "tier": given["tier"],
        "attach_at": parse_attached(given.texts("attach_at")),
    }
    answer = ask(home, "POST", "/v1/forks", body, may_repeat=False)
    made = forks_of(answer)
    forks = [_facts_of(fork) for fork in made]
    tell_degraded(*map(session_of, made))
    if words:
        from waypoint.cli.fast.in_each import run_in_each

        user = session_of(made[0]).get("user")
        return run_in_each(home, forks, words, {"user": user}, as_json=given.flag("json"))
    if given.flag("json"):
        print_json([{**fork, "exit": None} for fork in forks])
    else:
        print_lines([str(fork["branch"]) for fork in forks])
    return 0


def _facts_of(fork: "dict[str, object]") -> "dict[str, object]":
    """What `--json` prints of a fork, apart from the command's outcome."""
    session = session_of(fork)
    return {**{key: fork[key] for key in ("branch", "pid", "ms")}, **{key: session.get(key) for key in HEADINGS}}
