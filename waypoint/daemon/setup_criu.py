"""Which CRIU a home uses, as setup sees to it."""

from collections.abc import Callable
from pathlib import Path

from waypoint.daemon import trials
from waypoint.model.requests import Capability
from waypoint.processes import criu_find
from waypoint.processes.criu_find import CriuProgram

_ORIGINS = {"chosen": "$WAYPOINT_CRIU", "distribution": "the distribution's", "private": "this home's own"}


def install(home: Path, chosen: str | None, say: Callable[[str], None]) -> None:
    """Make sure that there is a CRIU which works here. `chosen`: the caller's own, which is taken as it is.

    Raises HostLacks.
    """
    if chosen:
        found = criu_find.find(home, tries=_trial_in(home), chosen=chosen)
    else:
        found = criu_find.find_or_install(home, say, tries=_trial_in(home))
    say(_describe(found))


def check(home: Path, chosen: str | None, say: Callable[[str], None]) -> None:
    """Say which one it is. Raises HostLacks if there is none that works."""
    say(_describe(criu_find.find(home, tries=_trial_in(home), chosen=chosen)))


def _trial_in(home: Path) -> Callable[[Path], list[Capability]]:
    return lambda program: trials.trial(program, home)


def _describe(found: CriuProgram) -> str:
    return f"CRIU {found.version}: {found.path} ({_ORIGINS[found.origin]})"
