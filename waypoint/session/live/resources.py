"""The resources that all sessions of a home share."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from waypoint.capture.captures import Captures
from waypoint.egress.egress import Egress
from waypoint.egress.published import Publisher
from waypoint.launch.criu_process import CriuSpawner
from waypoint.launch.ground.places import SharedPlaces
from waypoint.launch.launcher_link import Launcher
from waypoint.session.live.overdue import Overdue
from waypoint.store.names import Names
from waypoint.upper.contract import Pool


class Resources(NamedTuple):
    """`pool`: for the upper trees of live sessions. Only `captures` uses the upper trees of captures. `writing`: for a
    `with` block in which the daemon writes any amount into the pool; the pool grows in time. `relieve`: frees all of
    the disk that nothing keeps, and returns whether that is anything. `trusted`: the user who may do all that root may;
    None: nobody.
    """

    places: SharedPlaces
    names: Names
    pool: Pool
    writing: Callable[[], AbstractContextManager[None]]
    relieve: Callable[[], Awaitable[bool]]
    captures: Captures
    launcher: Launcher
    criu: CriuSpawner
    overdue: Overdue
    egress: Egress
    publisher: Publisher
    trusted: int | None = None
