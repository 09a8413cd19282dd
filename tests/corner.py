"""A fixture for tests that mount: import it into the conftest of their folder."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.linux import mounts, namespaces


@pytest.fixture
def corner(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed afterwards. What the test mounts is seen by nobody else, and goes with its namespace."""
    where = os.getcwd()
    with open("/proc/self/ns/mnt", "rb") as outside:
        namespaces.unshare(namespaces.CLONE_NEWNS)
        try:
            mounts.make_private("/")
            yield tmp_path
        finally:
            namespaces.setns(outside.fileno(), namespaces.CLONE_NEWNS)
            os.chdir(where)
    assert mounts.list_mount_points_in(tmp_path) == []
    shutil.rmtree(tmp_path)
