"""The fixture `small_disk`, a home on its own small file system, and functions that fill this file system."""

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
"""The bytes of a file system that is just large enough for a home with the default pool."""
SNUG_POOL = {
    "initial_bytes": 256 * MIB,
    "step_bytes": 128 * MIB,
    "headroom_bytes": 128 * MIB,
    "floor_bytes": 512 * MIB,
}
"""The floor (the bytes that the disk keeps free) is this large because a full pool is enlarged from below the floor
when a write must not fail.
"""
SNUG_FITS = 1088 * MIB
"""The bytes of a file system on which a home with SNUG_POOL fits and the pool can grow by one or two steps. A program
that writes reaches the floor soon.
"""

DAEMON_WAIT_S = 5.0
"""The longest wait for a daemon that serves: one that cannot serve first reports the reason for a second."""


class Disk(NamedTuple):
    """A file system for a home. `files`: the number of inodes, 0 for the default. `kind`: the file system's type.
    `pool`: the sizes of the home's pool, None for the defaults.
    """

    size_bytes: int = HOME_FITS
    files: int = 0
    kind: str = "ext4"
    pool: Mapping[str, int] | None = None


SNUG = Disk(SNUG_FITS, pool=SNUG_POOL)


@pytest.fixture
def small_disk(corner: Path, request: pytest.FixtureRequest) -> Iterator[Home]:
    """A home on its own file system, which a test can fill. The fixture's parameter is a `Disk`."""
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
        with open_home("full", within=folder, pool=disk.pool) as home:
            yield home
            make_room(home)
            wait_served(home)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def leave(home: Home, free_bytes: int) -> None:
    """Fill the file system until only `free_bytes` are free."""
    with (home.path.parent / "fill").open("wb") as file:
        found = os.statvfs(home.path)
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - free_bytes)


def fill(home: Home, *, reserve: bool = False, more: bool = False) -> None:
    """Fill all blocks of the file system. `reserve`: leave the home the disk space that it has reserved for itself.
    `more`: after `leave`, which has filled a part.
    """
    if not reserve:
        shutil.rmtree(home.path / "reserve", ignore_errors=True)
    with (home.path.parent / "fill").open("ab" if more else "wb") as file:
        for size in (16 * MIB, MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)


def use_up_inodes(home: Home) -> None:
    """Use up the inodes, so that no further file can be created although there is free space."""
    folder = home.path.parent / "names"
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        for number in itertools.count():
            (folder / f"{time.monotonic_ns()}-{number}").touch()


def make_room(home: Home) -> None:
    """Undo `fill`, `leave` and `use_up_inodes`."""
    (home.path.parent / "fill").unlink(missing_ok=True)
    shutil.rmtree(home.path.parent / "names", ignore_errors=True)


def wait_served(home: Home) -> None:
    """Wait until a daemon serves the home again, after the disk has free space again."""
    wait_until(lambda: home.cli("ps").code == 0, "the home can be served again", DAEMON_WAIT_S)
