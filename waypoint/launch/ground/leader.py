"""Putting a setsid(1) that runs on every base into the session: it makes the session's program a session leader.

It is a copy of the host's setsid (util-linux). On a base with another C library (Alpine, busybox) the loader and the
library are put beside the copy, where no other program finds them.
"""

import shutil
from pathlib import Path

from waypoint.linux.calls import programs
from waypoint.linux.storage import beneath
from waypoint.model.errors import HostLacks
from waypoint.processes.own_libraries import give_libraries, loader_of


def place_setsid(own: Path, inside: str, base: str) -> None:
    """Put setsid, and its C library if needed, into the host folder `own`, which a session on `base` sees as `inside`.
    Raises OSError, or HostLacks if the host has no setsid.
    """
    found = programs.find("setsid")
    if found is None:
        raise HostLacks("find", "setsid", "it is not on this machine", "install util-linux")
    program = Path(shutil.copy(found, own / "setsid"))
    if base == "/":  # the copy finds the host's C library
        return
    loader = loader_of(program)
    if not loader or beneath.is_in_root(base, loader):
        return
    libraries = own / "lib"
    libraries.mkdir(mode=0o755)
    give_libraries(program, Path(loader), None, libraries, f"{inside}/lib")
