"""`waypoint handoff`."""

from waypoint.agents.handoff import document
from waypoint.cli.output import advice, print_json, print_lines
from waypoint.client.sdk import Client
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    facts = Client(given.text("home")).history.handoff(given.required("name"))
    if given.flag("json"):
        print_json(facts)
    else:
        print_lines(advice(document(facts)).splitlines())
    return 0
