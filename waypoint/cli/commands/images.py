"""`waypoint verify` and `waypoint evict`: the store of images."""

from waypoint.cli.output import note, print_json, print_lines, warn
from waypoint.client.sdk import Client
from waypoint.model.errors import StoreDamaged, UsageProblem
from waypoint.model.rendering import short, size
from waypoint.model.verbs import Given


def verify(given: Given) -> int:
    """Returns the exit status: 10 if there is damage."""
    found = Client(given.text("home")).history.verify(read_data=given.flag("read_data"))
    if given.flag("json"):
        print_json(found)
    elif found.damage:
        concerned = sorted({name for one in found.damage for name in one["names"]})
        print_lines([f"damaged: {', '.join(concerned) or 'no capture that is still needed'}"])
        warn("damage", [one["said"] for one in found.damage])
        if found.stored_again:
            note(f"stored again, from copies outside of the store: {', '.join(found.stored_again)}")
    else:
        images = "1 image" if found.images == 1 else f"{found.images} images"
        print_lines([f"no damage, {images}{', every byte was read' if found.read_data else ''}"])
    return StoreDamaged.exit_code if found.damage else 0


def evict(given: Given) -> int:
    """Returns the exit status: 1 if nothing could be evicted of what was there."""
    names = given.texts("names")
    if bool(names) == given.flag("all"):
        said = "--all and names exclude each other" if names else "neither names nor --all are given"
        raise UsageProblem("evict", " ".join(names), said, "name checkpoints or branches, or use --all")
    found = Client(given.text("home")).history.evict(*names)
    if given.flag("json"):
        print_json(found)
    else:
        print_lines([f"{one['name']}  {short(one['capture'])}" for one in found.evicted])
        captures = "1 capture" if len(found.evicted) == 1 else f"{len(found.evicted)} captures"
        print_lines([f"evicted {captures}; freed {size(found.freed_bytes)}"])
        warn("not evicted", found.kept)
    return 1 if found.kept and not found.evicted else 0
