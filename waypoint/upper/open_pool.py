"""Choosing the driver for a home, by trying what the machine can do."""

import errno
import os
import secrets
from typing import Literal

from waypoint.linux import btrfs, filesystem
from waypoint.model.errors import HostLacks, StateConflict
from waypoint.upper.btrfs_pool import BtrfsPool, NativeGround
from waypoint.upper.contract import Pool, PoolSizes, refusals, usual_sizes
from waypoint.upper.copy_pool import GONE, CopyPool
from waypoint.upper.loop_pool import FOLDER, IMAGE, open_pool_file

Driver = Literal["auto", "btrfs", "copy"]


def open_pool(home: str | os.PathLike[str], driver: Driver = "auto", sizes: PoolSizes | None = None) -> Pool:
    """Open the pool of the folder `home`, making it if there is none. For one process at a time.

    `auto`: the driver that made what is there; else `btrfs` if the machine can, else `copy`. `btrfs`: subvolumes of the
    file system that the home is on, or a btrfs of `sizes` (None: the usual ones) in a file. The pool is mounted in the
    caller's mount namespace, so that has to be a private one if the machine shall not see it.

    Raises HostLacks (the driver cannot work here), StateConflict (the home has a pool of the other driver), Failed.
    A disk that is too full for a pool file is Failed also with `auto`: it would otherwise choose the slow driver
    for good.
    """
    place = os.path.realpath(home)
    made = _made_by(place)
    if made and driver not in ("auto", made):
        said = f"it has a pool of the driver {made}"
        raise StateConflict(f"open a pool of the driver {driver} in", place, said, f"use the driver {made}")
    if "copy" in (made, driver):
        return _open_copy(place)
    try:
        return _open_btrfs(place, sizes)
    except HostLacks:
        if made or driver == "btrfs":
            raise
        return _open_copy(place)


def _made_by(home: str) -> Literal["btrfs", "copy"] | None:
    if os.path.exists(f"{home}/{IMAGE}"):
        return "btrfs"
    return "copy" if os.path.isdir(f"{home}/{FOLDER}/{GONE}") else None


def _open_btrfs(home: str, sizes: PoolSizes | None) -> Pool:
    folder = f"{home}/{FOLDER}"
    if not os.path.exists(f"{home}/{IMAGE}") and _can_have_subvolumes(folder):
        return BtrfsPool(folder, NativeGround(folder))
    file = open_pool_file(home, sizes or usual_sizes(filesystem.total_bytes(home), filesystem.free_bytes(home)))
    return BtrfsPool(file.folder, file)


def _can_have_subvolumes(folder: str) -> bool:
    with refusals("open the pool", folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    trial = f"{folder}/.trial-{secrets.token_hex(8)}"
    try:
        btrfs.create_subvolume(trial)
        btrfs.destroy_subvolume(trial)
    except OSError as err:
        # Any other refusal, such as a full disk, comes from a btrfs that knows subvolumes.
        return err.errno not in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES)
    return True


def _open_copy(home: str) -> Pool:
    folder = f"{home}/{FOLDER}"
    with refusals("open the pool", folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return CopyPool(folder)
