"""Gives each test its own names.db."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.records.names import Names


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Names]:
    store = Names(tmp_path / "names.db")
    yield store
    store.close()
