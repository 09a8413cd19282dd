"""Which CRIU a home uses, as setup sees to it: one that has passed a trial on this machine."""

import os
from collections.abc import Callable
from pathlib import Path

from waypoint.daemon.trials import trial
from waypoint.model.errors import HostLacks
from waypoint.model.requests import Capability
from waypoint.processes import criu_install
from waypoint.processes.criu_find import CriuProgram, find, find_or_install


def install(home: Path, given: str | None, say: Callable[[str], None]) -> None:
    """Make sure that there is a CRIU that works. `given`: the caller's own choice. Raises HostLacks."""
    _require_program(given)
    if os.geteuid() != 0:  # a trial makes a session, which takes root
        say(f"CRIU: {given or criu_install.install(home, say)}, not tried: that takes root")
        return
    say(_describe(find_or_install(home, say, tries=_tries(home), chosen=given)))


def check(home: Path, given: str | None, say: Callable[[str], None]) -> None:
    """Say which one it is. Raises HostLacks if there is none."""
    _require_program(given)
    say(_describe(find(home, tries=_tries(home), chosen=given)))


def _require_program(given: str | None) -> None:
    if given and not os.access(given, os.X_OK):
        raise HostLacks("use", f"$WAYPOINT_CRIU ({given})", "it is not a program", "correct or unset it")


def _tries(home: Path) -> Callable[[Path], list[Capability]]:
    return lambda program: trial(program, home)


def _describe(found: CriuProgram) -> str:
    origins = {"chosen": "as WAYPOINT_CRIU says", "distribution": "the machine's own", "private": "of this home alone"}
    return f"CRIU: {found.path}, version {found.version}, {origins[found.origin]}"
