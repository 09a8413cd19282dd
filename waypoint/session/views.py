"""Views: read-only mounts, in the daemon's mount namespace, of what a session with a given upper tree sees."""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.launch.ground import homes
from waypoint.launch.ground.places import SharedPlaces
from waypoint.linux.storage import idmapped, mounts
from waypoint.model.ids import random_hex
from waypoint.model.records import HOST_IDS, IdMap

_PREFIX = "view-"


class View(NamedTuple):
    """`path`: the mount. `upper`: the upper directory that it shows; an empty folder if there is none."""

    path: str
    upper: str


def lower_of(base: str, target: str) -> str:
    """The folder of the machine below a session's overlay at `target`. Raises FileNotFoundError."""
    lower = f"{base.rstrip('/')}{target}".rstrip("/") or "/"
    if not os.path.isdir(lower):
        raise FileNotFoundError(errno.ENOENT, "the machine no longer has this mount", lower)
    return lower


@contextlib.contextmanager
def mounted_view(places: SharedPlaces, base: str, target: str, upper: str, ids: IdMap = HOST_IDS) -> Iterator[View]:
    """Mount a view of a session's overlay at `target` of `base`, with the upper layer `upper`, which need not exist.

    With the session's `ids` its files have the same owners as in the session's own overlay; without, those on disk.
    Call `places.follow_host` first. Raises OSError.
    """
    empty = places.kit.folder / "empty"  # on the kit's tmpfs: no layer may lie in the tree of another one (ELOOP)
    empty.mkdir(mode=0o755, exist_ok=True)
    above = upper if os.path.isdir(upper) else str(empty)
    lower = lower_of(base, target)
    skeleton = places.kit.skeleton(base, target, ids, homes.known())
    with contextlib.ExitStack() as mounted:
        on_disk = {path: path for path in (above, lower)}
        if ids.is_shifted:
            for path in {above, lower} - {str(empty)}:  # `empty` is on a tmpfs, which Linux idmaps only since 6.3
                on_disk[path] = mounted.enter_context(_place(places))
                idmapped.attach(path, on_disk[path], idmapped.namespace(ids.lines()))
                mounted.callback(mounts.umount, on_disk[path], mounts.MNT_DETACH)
        layers = [on_disk[above], *([skeleton] if skeleton else []), on_disk[lower]]
        place = mounted.enter_context(_place(places))
        lowers = ":".join(map(mounts.escape, layers))
        options = f"lowerdir={lowers},redirect_dir=follow,index=off,metacopy=off,xino=off,nfs_export=off"
        mounts.mount("overlay", place, "overlay", mounts.MS_RDONLY | mounts.MS_NODEV, options)
        mounted.callback(mounts.umount, place, mounts.MNT_DETACH)
        yield View(place, above)


@contextlib.contextmanager
def _place(places: SharedPlaces) -> Iterator[str]:
    place = places.runtime / f"{_PREFIX}{random_hex(8)}"
    place.mkdir(mode=0o700)
    try:
        yield str(place)
    finally:
        place.rmdir()


def sweep_views(places: SharedPlaces) -> None:
    """Remove the mount points that a killed daemon has left; its mounts have gone with it."""
    for place in places.runtime.glob(f"{_PREFIX}*"):
        place.rmdir()
