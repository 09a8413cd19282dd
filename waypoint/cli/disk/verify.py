"""`waypoint verify`."""

import dataclasses

from waypoint.cli.output import advice, print_json, print_lines, tell, tell_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import StoreDamaged, cleaned
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status: that of StoreDamaged if there is damage. Raises WaypointError."""
    found = Client(given.text("home")).disk.verify(read_data=given.flag("read_data"))
    if given.flag("json"):
        print_json(dataclasses.replace(found, remedy=advice(found.remedy)))
    else:
        how = "every byte read" if given.flag("read_data") else "what tells of them read (--read-data reads all)"
        images = "1 image" if found.images == 1 else f"{found.images} images"
        print_lines([f"{images}, {found.objects} objects: {how}{'' if found.problems else ', no damage found'}"])
        _tell_unknown(len(found.unknown))
    tell("damaged", found.problems)
    if found.remedy:
        tell_lines([cleaned(f"  next: {found.remedy}")])
    return StoreDamaged.exit_code if found.problems else 0


def _tell_unknown(count: int) -> None:
    if count:
        those = "1 of these images is unknown to names.db, and is kept" if count == 1 else ""
        print_lines([those or f"{count} of these images are unknown to names.db, and are kept"])
