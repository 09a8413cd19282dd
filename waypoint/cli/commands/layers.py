"""`waypoint layer list`, `layer get` and `layer attach`."""

from waypoint.cli.caller import absolute, kinds
from waypoint.cli.output import print_json, print_lines, wants_colour
from waypoint.client.sdk import Client
from waypoint.model.rendering import layer, short, size, table
from waypoint.model.verbs import Given


def list_layers(given: Given) -> int:
    found = Client(given.text("home")).history.show(given.required("name"))
    layers = {kind: facts for kind, facts in found.layers.items() if facts is not None}
    if given.flag("json"):
        print_json([{"kind": kind, **facts} for kind, facts in layers.items()])
    else:
        print_lines(
            table(("KIND", "LAYER"), [(kind, layer(facts)) for kind, facts in layers.items()], coloured=wants_colour())
        )
    return 0


def attach(given: Given) -> int:
    name, layer = given.required("name"), given.required("layer")
    ((kind, path),) = kinds([layer], "", absolute).items()
    made = Client(given.text("home")).history.attach_layer(name, kind, path, wait=given.flag("wait"))
    if given.flag("json"):
        print_json(made)
    else:
        print_lines([f"{made.name}  {short(made.capture)}  {made.kind}, {size(made.size_bytes)}"])
    return 0


def get(given: Given) -> int:
    history = Client(given.text("home")).history
    made = history.get_layer(given.required("name"), given.required("kind"), absolute(given.required("dest")))
    if given.flag("json"):
        print_json(made)
    return 0
