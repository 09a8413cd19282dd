"""Choosing the tier at which a capture is restored: its processes, its programs started again, or its files alone."""

from typing import NamedTuple

from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import CannotCapture, WaypointError
from waypoint.model.records import Capture, ProgramsLayer, Tier
from waypoint.session.live.resources import Resources


class Chosen(NamedTuple):
    """`tier`: at which the capture is restored. `why_not_live`: why the processes of a live capture cannot be restored.
    `starts_again`: whether the programs are started again if CRIU cannot restore the processes.
    """

    tier: Tier
    why_not_live: tuple[Degradation, ...] = ()
    starts_again: bool = False


ONLY_FILES = Chosen("files")


def choose(resources: Resources, origin: Capture, wanted: Tier | None) -> Chosen:
    """Choose the tier for `origin`. `wanted`: the only acceptable tier; None: the best that works on this machine.

    Raises CannotCapture if the capture or the machine lacks what the tier needs.
    """
    _check_captured(origin, wanted)
    tier = wanted or origin.tier
    if tier != "live":
        return Chosen(tier)
    starts_again = wanted is None and origin.layer(ProgramsLayer) is not None
    try:
        resources.captures.check_machine(origin)  # before the capture is extracted from the store
    except CannotCapture as error:
        if starts_again:
            return started_again(error, error.next_step)
        lower = "files" if origin.layer(ProgramsLayer) is None else "respawn"
        error.next_step += f"; or restore it without its processes: waypoint restore {origin.id[:12]} --tier {lower}"
        raise
    return Chosen("live", starts_again=starts_again)


def started_again(error: WaypointError, next_step: str) -> Chosen:
    """The choice after the processes could not be restored because of `error`. `next_step`: after which they can be."""
    why = f"{error.said}; to have them back: {next_step}"
    return Chosen("respawn", (degradation("processes-not-restored", error.code, why),))


def _check_captured(origin: Capture, wanted: Tier | None) -> None:
    if wanted == "live" and origin.tier != "live":
        said = "the capture has no processes"
    elif wanted == "respawn" and origin.layer(ProgramsLayer) is None:
        said = "the capture has no list of its programs: its tier is files, or an earlier version of Waypoint took it"
    else:
        return
    next_step = "leave out --tier: then the best tier that works is taken"
    raise CannotCapture(f"restore at the tier {wanted}", origin.id[:12], said, next_step)
