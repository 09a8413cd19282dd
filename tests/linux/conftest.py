"""Fixtures of the tests that touch the kernel."""

import os
from collections.abc import Iterator

import pytest

from tests.corner import corner as corner
from waypoint.linux.tasks import cgroups


@pytest.fixture
def group() -> Iterator[str]:
    """The path of an empty cgroup. Its processes and child groups are removed with it after the test."""
    path = f"{cgroups.find_hierarchies().unified}/waypoint-test-{os.getpid()}"
    cgroups.create(path)
    yield path
    cgroups.end(path)
