"""setsid(1), by which a session's program becomes the leader of its terminal session, in a form that runs on the base.

The machine's own (util-linux). A base without its C library (Alpine, busybox) is given the loader and the library
beside it, which nothing else in the session finds.
"""

import os
import shutil
from pathlib import Path

from waypoint.linux import programs
from waypoint.model.errors import HostLacks
from waypoint.processes.own_libraries import give_libraries, loader_of


def place_setsid(own: Path, inside: str, base: str) -> None:
    """Put it into the folder `own`, which a session on `base` sees as `inside`. Raises HostLacks, OSError."""
    found = programs.find("setsid")
    if found is None:
        raise HostLacks("find", "setsid", "it is not on this machine", "install util-linux")
    program = Path(shutil.copy(found, own / "setsid"))
    if base == "/":  # where it runs already
        return
    loader = loader_of(program)
    if not loader or os.path.exists(f"{base}{loader}"):
        return
    libraries = own / "lib"
    libraries.mkdir(mode=0o755)
    give_libraries(program, Path(loader), None, libraries, f"{inside}/lib")
