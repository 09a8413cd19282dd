"""CRIU in `waypoint setup`: the home gets a CRIU that has passed a trial on this machine."""

import os
from collections.abc import Callable
from pathlib import Path

from waypoint.linux.calls import powers
from waypoint.model.errors import HostLacks
from waypoint.model.facts import Capability
from waypoint.processes.criu.rpc import CriuProgram
from waypoint.setup.criu_find import NotMade, find, find_or_install, forget_failures
from waypoint.setup.rows import CHOOSE_ANOTHER

_NONE = f"CRIU: none, as {powers.WITHOUT_ROOT}; what ran is started again, instead of being kept"


def install(home: Path, given: str | None, say: Callable[[str], None]) -> None:
    """Make sure that the home has a CRIU that works; install one if need be. Reports with `say`.

    `given`: the value of WAYPOINT_CRIU, if it is set. Raises HostLacks, OSError. Without root there is none.
    """
    _require_program(given)
    if not powers.is_machines():
        say(_NONE)
        return
    forget_failures(home)
    try:
        say(_describe(find_or_install(home, say, tries=_tries(home), chosen=given)))
    except NotMade as error:
        said = f"it is there, and so is a CRIU, but whether this works here could not be tried: {error.said}"
        raise HostLacks("finish the setup of", f"the home {home}", said, error.next_step) from error


def check(home: Path, given: str | None, say: Callable[[str], None]) -> CriuProgram | None:
    """Which CRIU the home uses, None without root; reports it with `say`, too. Raises HostLacks if no CRIU works."""
    _require_program(given)
    if not powers.is_machines():
        say(_NONE)
        return None
    found = find(home, tries=_tries(home), chosen=given)
    say(_describe(found))
    return found


def _require_program(given: str | None) -> None:
    if given and not os.access(given, os.X_OK):
        raise HostLacks("use", f"$WAYPOINT_CRIU ({given})", "it is not a program", CHOOSE_ANOTHER)


def _tries(home: Path) -> Callable[[Path], list[Capability]]:
    def tries(program: Path) -> list[Capability]:
        from waypoint.setup.trials import trial  # most setups find the outcome of an earlier one

        return trial(program, home)

    return tries


def _describe(found: CriuProgram) -> str:
    origins = {"chosen": "as WAYPOINT_CRIU says", "distribution": "the machine's own", "private": "of this home alone"}
    return f"CRIU: {found.path}, version {found.version}, {origins[found.origin]}"
