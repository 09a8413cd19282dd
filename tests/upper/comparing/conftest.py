"""A base to put overlays over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corner import corner as corner
from tests.upper.comparing.overlays import Layered
from waypoint.linux.storage import mounts


@pytest.fixture
def ground(corner: Path) -> Iterator[Layered]:
    mounts.mount("tmpfs", corner, "tmpfs")  # to unmount an overlay writes its upper file system out
    base, trees = corner / "base", corner / "trees"
    base.mkdir()
    trees.mkdir()
    yield Layered(trees, base)
    mounts.umount(corner)
