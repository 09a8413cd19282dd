"""The fixture of tests of the store."""

from pathlib import Path

import pytest

from waypoint.store.store import Store, make_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(str(tmp_path / "store"))
