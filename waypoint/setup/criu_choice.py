"""CRIU in `waypoint setup`: the home gets a CRIU that has passed a trial on this machine."""

import os
from collections.abc import Callable
from pathlib import Path

from waypoint.model.errors import HostLacks
from waypoint.model.session_facts import Capability
from waypoint.setup.criu_find import describe, find, find_or_install, forget_failures
from waypoint.setup.rows import CHOOSE_ANOTHER
from waypoint.setup.trials import NotMade, trial


def install(home: Path, given: str | None, say: Callable[[str], None]) -> None:
    """Make sure that the home has a CRIU that works; if necessary, install one. `say` prints messages.

    `given`: the value of WAYPOINT_CRIU, if it is set.
    """
    _require_program(given)
    forget_failures(home)
    try:
        say(f"CRIU: {describe(find_or_install(home, say, tries=_tries(home), chosen=given))}")
    except NotMade as error:
        said = f"the home and a CRIU are installed, but this CRIU could not be tried: {error.said}"
        raise HostLacks("finish the setup of", f"the home {home}", said, error.next_step) from error


def check(home: Path, given: str | None, say: Callable[[str], None]) -> None:
    """Print with `say` which CRIU the home uses. Raises HostLacks if no CRIU works."""
    _require_program(given)
    say(f"CRIU: {describe(find(home, tries=_tries(home), chosen=given))}")


def _require_program(given: str | None) -> None:
    if given and not os.access(given, os.X_OK):
        raise HostLacks("use", f"$WAYPOINT_CRIU ({given})", "it is not a program", CHOOSE_ANOTHER)


def _tries(home: Path) -> Callable[[Path], list[Capability]]:
    return lambda program: trial(program, home)
