"""Fixtures: a home and a pool for each kind of pool, to test that all kinds follow the same contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corner import corner as corner
from tests.upper.pool_homes import POOL_HOMES, PoolHome
from waypoint.upper.contract import Pool


@pytest.fixture(
    params=[
        "loop",
        *(pytest.param(kind, marks=pytest.mark.soak(part="matrix")) for kind in sorted(POOL_HOMES) if kind != "loop"),
    ]
)
def pool_home(request: pytest.FixtureRequest, corner: Path) -> PoolHome:
    """A home for a pool of this kind: `native`, `loop` or `copy`."""
    return POOL_HOMES[request.param](corner)


@pytest.fixture
def pool(pool_home: PoolHome) -> Iterator[Pool]:
    """A new pool of each kind."""
    pool = pool_home.open()
    yield pool
    pool.close()
