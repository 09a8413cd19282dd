"""Opening a home's pool. The driver of a new pool depends on what the machine can do, which is found out by trying."""

import errno
import os
from collections.abc import Callable
from typing import Literal

from waypoint.linux.calls import abilities
from waypoint.linux.storage import btrfs, filesystem
from waypoint.model.errors import HostLacks, StateConflict
from waypoint.model.ids import random_hex
from waypoint.upper.btrfs_pool import BtrfsPool
from waypoint.upper.contract import Pool, PoolSizes, refusals, usual_sizes
from waypoint.upper.copy_pool import GONE, CopyPool
from waypoint.upper.loop_pool import no_reserve, open_pool_file
from waypoint.upper.pool_image import FOLDER, IMAGE

Driver = Literal["auto", "btrfs", "copy"]


def open_pool(
    home: str | os.PathLike[str],
    driver: Driver = "auto",
    sizes: PoolSizes | None = None,
    give_room: Callable[[], None] = no_reserve,
) -> Pool:
    """Open the pool of the home `home`, creating the pool if missing. Only one process at a time may have it open.

    `driver`: `btrfs` uses subvolumes of the btrfs that the home is on, else of a btrfs in a file with `sizes` (None:
    `usual_sizes`), mounted in the caller's mount namespace. `copy` uses plain folders. `auto` uses the driver of an
    existing pool; for a new pool `btrfs` if the machine can, else `copy`. `give_room`: frees some MiB of a full disk
    for the end of a session.

    Raises HostLacks (the driver cannot work here), StateConflict (the home has a pool of the other driver), Failed,
    also if the disk is too full for a new pool file: falling back to `copy` would keep the slow driver for good.
    """
    place = os.path.realpath(home)
    made = _made_by(place)
    if made and driver not in ("auto", made):
        said = f"the home already has a pool of the driver {made}"
        raise StateConflict(f"open a pool of the driver {driver} in", place, said)
    if "copy" in (made, driver) or not abilities.own().loop_devices:
        return _open_copy(place)
    try:
        return _open_btrfs(place, sizes, give_room)
    except HostLacks:
        if made or driver == "btrfs":
            raise
        return _open_copy(place)


def has_pool(home: str | os.PathLike[str]) -> bool:
    place = os.path.realpath(home)
    folder = f"{place}/{FOLDER}"
    return os.path.exists(f"{place}/{IMAGE}") or (os.path.isdir(folder) and bool(os.listdir(folder)))


def _made_by(home: str) -> Literal["btrfs", "copy"] | None:
    if os.path.exists(f"{home}/{IMAGE}"):
        return "btrfs"
    return "copy" if os.path.isdir(f"{home}/{FOLDER}/{GONE}") else None


def _open_btrfs(home: str, sizes: PoolSizes | None, give_room: Callable[[], None]) -> Pool:
    folder = f"{home}/{FOLDER}"
    if not os.path.exists(f"{home}/{IMAGE}") and _can_have_subvolumes(folder):
        return BtrfsPool(folder)
    sizes = sizes or usual_sizes(filesystem.total_bytes(home), filesystem.free_bytes(home))
    return open_pool_file(home, sizes, give_room)


def _can_have_subvolumes(folder: str) -> bool:
    with refusals("open the pool", folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    trial = f"{folder}/.trial-{random_hex(8)}"
    try:
        btrfs.create_subvolume(trial)
        btrfs.destroy_subvolume(trial)
    except OSError as err:
        # Any other error, such as a full disk, shows that the folder is on a btrfs that can make subvolumes.
        return err.errno not in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES)
    return True


def _open_copy(home: str) -> Pool:
    folder = f"{home}/{FOLDER}"
    with refusals("open the pool", folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return CopyPool(folder)
