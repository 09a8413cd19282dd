"""Where the things of a home lie: captures, trees, and what runs. For the sweep, and for those who ask what is kept."""

from waypoint.capture.sweeping import Shelf
from waypoint.linux.tasks import cgroups
from waypoint.model.ids import is_id
from waypoint.processes.left_out import take_back
from waypoint.session.live import record
from waypoint.session.live.resources import Resources


def shelves_of(resources: Resources) -> list[Shelf]:
    """All shelves of the home. The processes of sessions come first: what they use may only go after them."""
    places, names = resources.places, resources.names
    rows = [*names.live(), *names.live(ready=False)]
    sessions = {row.session for row in rows}
    runtime = places.sessions

    def groups() -> list[str]:
        return [group for group in cgroups.children(places.cgroup) if is_id(group)]

    def end(session: str) -> None:
        group = places.cgroup_of(session)
        take_back(group)  # its daemon may have died while it was capturing it
        cgroups.end(group)

    def records() -> list[str]:
        return [folder.name for folder in runtime.iterdir() if not folder.name.startswith(".")]

    return [
        # A cgroup cannot bear a mark: it belongs to whom the runtime folder belongs.
        Shelf("processes", runtime, sessions, groups, places.cgroup_of, end),
        *resources.captures.shelves(rows),
        Shelf(
            "session",
            runtime,
            sessions,
            records,
            lambda it: str(runtime / it),
            lambda it: record.remove_folder(runtime, it),
        ),
    ]
