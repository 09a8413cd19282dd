"""Which CRIU a home uses, as setup sees to it."""

import os
from collections.abc import Callable
from pathlib import Path

from waypoint.model.errors import HostLacks
from waypoint.processes import criu_install


def install(home: Path, given: str | None, say: Callable[[str], None]) -> None:
    """Make sure that there is a CRIU. `given`: the caller's own choice. Raises HostLacks."""
    found = find(home, given)
    if found is None:
        found = criu_install.install(home, say)
    say(f"CRIU: {found}")


def check(home: Path, given: str | None, say: Callable[[str], None]) -> None:
    """Say which one it is. Raises HostLacks if there is none."""
    found = find(home, given)
    if found is None:
        raise HostLacks("find", "CRIU", "none has been installed for this home", "sudo waypoint setup")
    say(f"CRIU: {found}")


def find(home: Path, given: str | None) -> Path | None:
    if given:
        if not os.access(given, os.X_OK):
            raise HostLacks("use", f"$WAYPOINT_CRIU ({given})", "it is not a program", "correct or unset it")
        return Path(given)
    return criu_install.installed(home)
