"""A home on a small file system of its own, and filling that: import the fixture into the test file."""

import contextlib
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.homes import MIB, Home, open_home
from tests.waiting import wait_until

HOME_FITS = 2200 * MIB
"""Bytes of a file system on which a home with its usual pool has just room."""
SNUG_POOL = {
    "initial_bytes": 256 * MIB,
    "step_bytes": 128 * MIB,
    "headroom_bytes": 128 * MIB,
    "floor_bytes": 512 * MIB,
}
"""The floor is no smaller because what a full pool is enlarged by, whenever something must go into it all the same,
comes from below it.
"""
SNUG_FITS = 1088 * MIB
"""Bytes of a file system on which a home with that pool has room, and the pool can grow by a step or two: a program
that writes has soon come to the floor.
"""

ON_DISK: Mapping[str, object] = {"hot_memory_bytes": 0}
"""Settings of a home in which no images are in memory at first: what fills the disk is all there."""
SECONDS = 20.0
"""A daemon that cannot serve its home says why for a second, before the next one is started."""


class Disk(NamedTuple):
    """`files`: how many files the file system can have; 0: as many as is usual. `kind`: of the file system. `pool`: the
    sizes of the home's; None: the usual ones. `settings`: what else its config.json has.
    """

    size_bytes: int = HOME_FITS
    files: int = 0
    kind: str = "ext4"
    pool: Mapping[str, int] | None = None
    settings: Mapping[str, object] = ON_DISK


SNUG = Disk(SNUG_FITS, pool=SNUG_POOL)


@pytest.fixture
def small_disk(corner: Path, request: pytest.FixtureRequest) -> Iterator[Home]:
    """A home on a file system of its own, so that it can be filled. A parameter is its `Disk`."""
    disk: Disk = getattr(request, "param", Disk())
    image, folder = corner / "disk.img", corner / "disk"
    folder.mkdir()
    image.touch()
    os.truncate(image, disk.size_bytes)
    options = ["-m", "0"] if disk.kind == "ext4" else []
    options += ["-N", str(disk.files)] if disk.files else []
    subprocess.run([f"mkfs.{disk.kind}", "-q", *options, str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        with open_home("full", within=folder, pool=disk.pool, settings=disk.settings) as home:
            yield home
            make_room(home)
            wait_served(home)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def leave(home: Home, free_bytes: int) -> None:
    """Leave so many bytes of the file system."""
    with (home.path.parent / "fill").open("wb") as file:
        found = os.statvfs(home.path)
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - free_bytes)


def fill(home: Home, *, reserve: bool = False) -> None:
    """Leave no block of the file system for data. `reserve`: what the home has reserved for itself stays its own."""
    if not reserve:
        shutil.rmtree(home.path / "reserve", ignore_errors=True)
    _commit(home.path)
    with (home.path.parent / "fill").open("wb") as file:
        for size in (16 * MIB, MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)


def _commit(folder: Path) -> None:
    """Have the file system commit: ext4 gives nobody the blocks of a file that was removed before that."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def use_up_names(home: Home) -> None:
    """Leave no room for another file on the file system, whatever space there is."""
    folder = home.path.parent / "names"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        for number in itertools.count():
            (folder / f"{time.monotonic_ns()}-{number}").touch()


def make_room(home: Home) -> None:
    """Undo `fill` and `use_up_names`."""
    (home.path.parent / "fill").unlink(missing_ok=True)
    shutil.rmtree(home.path.parent / "names", ignore_errors=True)


def wait_served(home: Home) -> None:
    """Wait until the home, whose disk has room again, is served."""
    wait_until(lambda: home.cli("ps").code == 0, "the home can be served again", SECONDS)
