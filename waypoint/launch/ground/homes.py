"""Finding all homes of Waypoint on this machine, which are hidden in sessions."""

import contextlib
import os
from pathlib import Path

from waypoint.linux.calls import abilities
from waypoint.linux.storage import mounts
from waypoint.model.errors import UsageProblem
from waypoint.model.paths import RUNTIME, SYSTEM_HOME, is_below
from waypoint.model.records import Bind

_CONTAINS = "it contains a home of Waypoint or its runtime folder"
_OWN = set[str]()
"""Without root: the home of this daemon and the folder of its runtime folder, which are not below RUNTIME."""
_NOTE = "home"  # file in a home's runtime folder that contains the home's path


def note(home: Path, runtime: Path) -> None:
    """Make `home` known to the daemons of other homes until the next reboot. Raises OSError."""
    (runtime / _NOTE).write_bytes(os.fsencode(home))
    if not abilities.own().owners:
        _OWN.update((str(home), str(runtime.parent)))


def noted(runtime: Path) -> str | None:
    """Return the path of the home of a runtime folder; None if no daemon has served that home yet. Raises OSError."""
    try:
        return os.fsdecode((runtime / _NOTE).read_bytes())
    except FileNotFoundError:
        return None


def known() -> list[str]:
    """Return the system home and all homes that had a daemon since the last reboot; without root, the own home and the
    folder above its runtime folder.
    """
    found = {SYSTEM_HOME, *_OWN}
    for place in Path(RUNTIME).glob(f"*/{_NOTE}"):
        with contextlib.suppress(OSError):  # that home was removed meanwhile
            found.add(os.fsdecode(place.read_bytes()))
    return sorted(one for one in found if os.path.isdir(one))


def shows_one(path: str) -> bool:
    """Whether a bind of `path` would show a part of a home or of Waypoint's runtime folder. A bind shows only the file
    system of `path`, not the mounts below it. Raises OSError if `path` does not exist.
    """
    device, shown = _on_disk(path)
    for place in (RUNTIME, *known()):
        with contextlib.suppress(FileNotFoundError):  # that home was removed meanwhile
            there, hidden = _on_disk(place)
            on_one = device == there and (is_below(hidden, shown) or is_below(shown, hidden))
            if on_one or is_below(path, place):
                return True
    return False


def check_bind(bind: Bind) -> None:
    """Raise UsageProblem if the bind would show a part of a home or of Waypoint's runtime folder, OSError if its source
    does not exist.
    """
    if shows_one(bind.source):
        said, next_step = _CONTAINS, "bind the other folders in it one by one"
        raise UsageProblem("bind", f"{bind.source} at {bind.target}", said, next_step)


def check_copied(source: str, tried: str, on: str) -> None:
    """Raise UsageProblem if a copy of the folder `source` would contain a home or Waypoint's runtime folder."""
    real = os.path.realpath(source)
    if any(is_below(os.path.realpath(place), real) for place in (RUNTIME, *known())):
        raise UsageProblem(tried, on, _CONTAINS, "name the other folders in it one by one")


def _on_disk(path: str) -> tuple[tuple[int, int], str]:
    """Return the device of the file system that contains `path`, and the path within it. Raises OSError."""
    mount, whole = mounts.holding(path)
    return mount.device, os.path.normpath(os.path.join(mount.root, os.path.relpath(whole, mount.mount_point)))
