"""Where a restore takes a session's outside mounts from: the same list as at its start, each at a place of its own.

At the start they lie one below the other, as the session sees them. A restore cannot use that: CRIU binds each singly
inside the new user namespace, where the kernel refuses to bind a mount without the ones below it (EINVAL: they are
locked, mount_namespaces(7)).
"""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from waypoint.linux import mounts
from waypoint.linux.mounts import MS_NODEV, MS_NOSUID, MS_RDONLY
from waypoint.session.launch.spec import StartSpec
from waypoint.session.launch.start import mount_memory, overlay_options


@dataclass(frozen=True, slots=True)
class Externals:
    """CRIU's names for the mounts that come from outside: for a dump, and for a restore from `mount_apart`'s folder."""

    dump: tuple[str, ...]
    restore: tuple[str, ...]
    root: str


def name_externals(targets: Sequence[str], folder: str) -> Externals:
    """Number what a session mounts from outside. The numbers are part of an image: its restore needs the same list."""
    return Externals(
        dump=tuple(f"mnt[{target}]:m{number}" for number, target in enumerate(targets)),
        restore=tuple(f"mnt[m{number}]:{folder}/m{number}" for number in range(len(targets))),
        root=f"{folder}/m{targets.index('/')}",
    )


def mount_apart(spec: StartSpec, folder: str) -> None:
    """Mount what `spec` mounts from outside as `folder`/m0, m1, ..., in this process's mount namespace.

    With the flags that they have in the session: those stay locked in the user namespace, CRIU's own would not be.
    """
    numbered = (f"{folder}/m{number}" for number in itertools.count())
    for overlay, place in zip(spec.overlays, numbered, strict=False):
        os.makedirs(place, exist_ok=True)
        mounts.mount("overlay", place, "overlay", MS_NODEV, overlay_options(overlay))
    for item, place in zip(spec.binds, numbered, strict=False):
        if os.path.isdir(item.source):
            os.makedirs(place, exist_ok=True)
        else:
            with open(place, "a"):
                pass  # a file is bound over a file
        mounts.bind(item.source, place)
        flags = (0 if item.device_nodes else MS_NODEV) | (MS_RDONLY if item.readonly else 0)
        mounts.remount_bind(place, flags | MS_NOSUID)
    for memory, place in zip(spec.memory, numbered, strict=False):
        os.makedirs(place, exist_ok=True)
        mount_memory(memory, place)
