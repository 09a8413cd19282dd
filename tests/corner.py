"""A fixture for tests that mount file systems; import it into a conftest."""

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import namespaces


@pytest.fixture
def corner(tmp_path: Path) -> Iterator[Path]:
    """Yield a temporary folder, and give the test its own mount namespace: mounts disappear with the namespace."""
    where = os.getcwd()
    with open("/proc/self/ns/mnt", "rb") as outside:
        namespaces.unshare(namespaces.CLONE_NEWNS)
        try:
            mounts.make_private("/")
            yield tmp_path
        finally:
            _return_to(outside.fileno())
            os.chdir(where)
    assert mounts.list_mount_points_in(tmp_path) == []
    shutil.rmtree(tmp_path)


def _return_to(namespace: int) -> None:
    """Enter the mount namespace. Retry on EINVAL: the kernel may still count a thread that Python has joined."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            namespaces.setns(namespace, namespaces.CLONE_NEWNS)
        except OSError as err:
            if err.errno != errno.EINVAL or time.monotonic() > deadline:
                raise
        else:
            return
