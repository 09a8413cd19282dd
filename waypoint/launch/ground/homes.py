"""The homes of Waypoint on this machine, which no session gets to see, whoever has set them up."""

import contextlib
import os
from pathlib import Path

from waypoint.launch.ground.base import is_below
from waypoint.linux.storage import mounts
from waypoint.model.paths import RUNTIME, SYSTEM_HOME

_NOTE = "home"  # in a home's runtime folder: where the home lies


def note(home: Path, runtime: Path) -> None:
    """Let the daemons of other homes know of `home`, until the machine is started again. Raises OSError."""
    (runtime / _NOTE).write_bytes(os.fsencode(home))


def known() -> list[str]:
    """The machine's own home, and those of which a daemon has run since the machine was started."""
    found = {SYSTEM_HOME}
    for place in Path(RUNTIME).glob(f"*/{_NOTE}"):
        with contextlib.suppress(OSError):  # that home was removed meanwhile
            found.add(os.fsdecode(place.read_bytes()))
    return sorted(one for one in found if os.path.isdir(one))


def shows_one(path: str) -> bool:
    """Whether a bind of `path` would show something of a home, or of Waypoint's runtime folder. A bind shows the file
    system of `path` alone, not what is mounted below it. Raises OSError if `path` does not exist.
    """
    device, shown = _on_disk(path)
    for place in (RUNTIME, *known()):
        with contextlib.suppress(FileNotFoundError):  # that home was removed meanwhile
            there, hidden = _on_disk(place)
            on_one = device == there and (is_below(hidden, shown) or is_below(shown, hidden))
            if on_one or is_below(path, place):
                return True
    return False


def _on_disk(path: str) -> tuple[tuple[int, int], str]:
    """The device of the file system on which `path` lies, and the path within this file system. Raises OSError."""
    mount, whole = mounts.holding(path)
    return mount.device, os.path.normpath(os.path.join(mount.root, os.path.relpath(whole, mount.mount_point)))
