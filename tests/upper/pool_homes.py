"""Homes for pools on small real file systems, which tests can fill; and functions that look at pool files."""

import errno
import functools
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.calls import programs
from waypoint.linux.storage import loop, mounts
from waypoint.upper.contract import Pool, PoolSizes
from waypoint.upper.open_pool import Driver, open_pool

MIB = 1 << 20
SIZES = PoolSizes(initial_bytes=256 * MIB, step_bytes=32 * MIB, headroom_bytes=32 * MIB, floor_bytes=32 * MIB)


@dataclass(frozen=True, slots=True)
class PoolHome:
    """The folder `home` on a small file system, and the driver that a pool in it must have."""

    home: Path
    driver: Driver

    def open(self) -> Pool:
        return open_pool(self.home, self.driver, SIZES)


def mount_new(kind: str, corner: Path, size_bytes: int) -> Path:
    """Make a file system of that kind and size in a file and mount it; return the mount point."""
    image, point = corner / f"{kind}.img", corner / kind
    image.touch()
    os.truncate(image, size_bytes)
    quiet = {"ext4": ["-q", "-m", "0", "-b", "4096"], "btrfs": ["-q"]}[kind]
    programs.run(f"mkfs.{kind}", *quiet, image)
    point.mkdir()
    with image.open("r+b") as file, loop.attach(file.fileno()) as device:
        mounts.mount(device.path, point, kind)
    return point


def _native(corner: Path) -> PoolHome:
    return PoolHome(mount_new("btrfs", corner, 256 * MIB), "btrfs")


def _loop(corner: Path) -> PoolHome:
    home = corner / "home"
    home.mkdir()
    return PoolHome(home, "btrfs")


def _copy(corner: Path) -> PoolHome:
    return PoolHome(mount_new("ext4", corner, 256 * MIB), "copy")


POOL_HOMES: dict[str, Callable[[Path], PoolHome]] = {"native": _native, "loop": _loop, "copy": _copy}


def fill(path: str | Path) -> None:
    """Write to the file until no block of its file system is free for data."""
    with open(path, "ab", buffering=0) as file:
        for size in (4 * MIB, 4096):
            _until_full(functools.partial(file.write, bytes(size)))


def _until_full(write: Callable[[], object]) -> None:
    while True:
        try:
            write()
        except OSError as err:
            if err.errno != errno.ENOSPC:
                raise
            return


def hide_program(name: str) -> None:
    """Make the program not executable in this mount namespace."""
    path = programs.find(name)
    assert path is not None
    mounts.bind("/dev/null", os.path.realpath(path))


def loops_of(image: Path) -> list[str]:
    """Return the paths of the loop devices of the file (losetup finds them by its device and inode)."""
    listed = subprocess.run(
        ["losetup", "--json", "--output", "NAME", "--associated", image], capture_output=True, check=True
    )
    return [row["name"] for row in json.loads(listed.stdout or b"{}").get("loopdevices", [])]


def reserved_bytes(image: Path) -> int:
    """Return how much disk space the file has."""
    return image.stat().st_blocks * 512


def is_reserved(image: Path) -> bool:
    """Return whether all disk space of the file is allocated."""
    return reserved_bytes(image) >= image.stat().st_size


def wait_for_no_loop(image: Path) -> None:
    """Wait until the file has no loop device: the kernel detaches it some time after its last user has ended."""
    wait_until(lambda: loops_of(image) == [], f"{image} has no loop device", PATIENCE_S)


def used_bytes(path: str) -> int:
    """Return the used bytes of data and metadata. The free bytes may fall by more: btrfs reserves space for metadata,
    in a pool of this size 32 MiB at a time.
    """
    numbers = os.statvfs(path)
    return (numbers.f_blocks - numbers.f_bfree) * numbers.f_frsize


def check_btrfs(image: Path) -> str:
    """Return the output of `btrfs check` for an unmounted image. Raise CalledProcessError if it is damaged."""
    done = subprocess.run(["btrfs", "check", image], capture_output=True, text=True, check=True)
    return done.stdout


def take_room(pool: Pool, number: int, size: int) -> None:
    """Make the tree `tree-NUMBER` with a file of `size` bytes."""
    pool.grow_if_needed(3 * size)
    with open(f"{pool.create(f'tree-{number}')}/data", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    pool.sync(f"tree-{number}")


def operation_of(folder: str) -> Callable[[], str]:
    """Return a function that returns the current exclusive operation of the btrfs, such as `balance`."""
    ident = subprocess.run(
        ["findmnt", "-no", "UUID", folder], capture_output=True, text=True, check=True
    ).stdout.strip()
    return lambda: Path(f"/sys/fs/btrfs/{ident}/exclusive_operation").read_text().strip()
