"""The mounts that a session has from outside (overlays, binds, tmpfs), made anew for CRIU to restore from.

At a session's start these mounts lie inside each other, as the session sees them. A restore cannot use mounts that lie
so: CRIU binds each mount singly inside the new user namespace, where the kernel refuses to bind a mount without the
mounts below it (EINVAL: they are locked, mount_namespaces(7)). For a restore each mount is therefore made in a
separate folder.
"""

import itertools
import os

import msgspec

from waypoint.launch.spec import Overlay, StartSpec
from waypoint.launch.start import make_place, mount_memory, overlay_options
from waypoint.linux.storage import mounts
from waypoint.linux.storage.mounts import MS_NODEV, MS_NOSUID, MS_RDONLY


def mount_apart(spec: StartSpec, folder: str) -> None:
    """Mount all mounts that `spec` has from outside, as `folder`/m0, m1, ..., in this process's mount namespace.

    They get the flags that they have in the session: flags that are set here are locked in the session's user
    namespace, flags that CRIU sets there would not be. Of a mount of the host that is gone, with its folder, the
    session gets what it has changed there. Raises OSError; the mounts made so far then stay.
    """
    numbered = (f"{folder}/m{number}" for number in itertools.count())
    made: dict[str, str] = {}
    for overlay, place in zip(spec.overlays, numbered, strict=False):
        os.makedirs(place, exist_ok=True)
        if made and not os.path.isdir(overlay.lowers[-1]):
            _make_mount_point(overlay.target, made)
            overlay = _over_nothing(overlay, f"{folder}/nothing")
        mounts.mount("overlay", place, "overlay", MS_NODEV, overlay_options(overlay))
        made[overlay.target] = place
    for item, place in zip(spec.binds, numbered, strict=False):
        if os.path.isdir(item.source):
            os.makedirs(place, exist_ok=True)
        else:
            with open(place, "a"):
                pass  # a file can be bound only over a file
        mounts.bind(item.source, place)
        flags = (0 if item.device_nodes else MS_NODEV) | (MS_RDONLY if item.readonly else 0)
        mounts.remount_bind(place, flags | MS_NOSUID)
    for memory, place in zip(spec.memory, numbered, strict=False):
        os.makedirs(place, exist_ok=True)
        mount_memory(memory, place)


def _make_mount_point(target: str, made: dict[str, str]) -> None:
    """Make the folder `target`, which the host had when the session started, in that of the overlays `made` in which
    the session has it. `made`: where each is mounted, by its mount point in the session.
    """
    above = max((point for point in made if f"{target}/".startswith(f"{point.rstrip('/')}/")), key=len)
    make_place(made[above], target.removeprefix(above), is_folder=True)


def _over_nothing(overlay: Overlay, empty: str) -> Overlay:
    """The overlay, with the folder `empty` in place of what it was over. The folder is made if it is missing."""
    os.makedirs(empty, exist_ok=True)
    return msgspec.structs.replace(overlay, lowers=[*overlay.lowers[:-1], empty])
