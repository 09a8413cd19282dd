"""What the sessions of a home stand on, and are captured with."""

from collections.abc import Callable
from typing import NamedTuple

from waypoint.capture.hot import Hot
from waypoint.processes.criu_find import CriuProgram
from waypoint.session.ground.places import Places
from waypoint.session.launch.link import Launcher
from waypoint.store.names import Names
from waypoint.upper.contract import Pool


class HomeGround(NamedTuple):
    """`find_criu`: blocks, the first time for seconds; raises HostLacks."""

    places: Places
    names: Names
    pool: Pool
    hot: Hot
    launcher: Launcher
    find_criu: Callable[[], CriuProgram]
