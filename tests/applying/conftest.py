"""A machine for each test."""

import os
from pathlib import Path

import pytest

from tests.applying.ground import Ground
from tests.corner import corner as corner
from waypoint.linux.storage import mounts


@pytest.fixture
def ground(corner: Path) -> Ground:
    """In memory: whoever unmounts an overlay, or ends a step, writes its file system out. Its attributes are looked at,
    too: a kernel whose tmpfs has none of users (before 6.6) would hide what is lost of them.
    """
    mounts.mount("tmpfs", corner, "tmpfs")
    os.setxattr(corner, "user.probe", b"")
    return Ground(corner)
