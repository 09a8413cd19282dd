"""`waypoint search`."""

from waypoint.cli.output import note, print_json, print_lines, wants_colour, warn
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem
from waypoint.model.rendering import found_lines
from waypoint.model.verbs import Given

_MOST = 1000


def run(given: Given) -> int:
    """Returns 1 if nothing was found."""
    text = given.required("text")
    if not 0 < len(text) <= _MOST:
        said = "it is empty" if not text else f"it has {len(text)} characters, but at most {_MOST} are searched for"
        raise UsageProblem("search for", "TEXT", said, "give a part of a name, message, command or path")
    facts = Client(given.text("home")).history.search(text, limit=given.number("limit") or 50)
    if given.flag("json"):
        print_json(facts)
    else:
        print_lines([line for one in facts.found for line in found_lines(one, coloured=wants_colour())])
        if facts.is_limited:
            note("there are more: give a longer TEXT, or a higher limit with -n")
        warn("changed files not searched, since they are only in the store, or too many", facts.unsearched)
    return 0 if facts.found else 1
