"""Fixtures: a home and a pool for each kind of pool, to test that all kinds follow the same contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corner import corner as corner
from tests.upper.grounds import GROUNDS, Ground
from waypoint.upper.contract import Pool


@pytest.fixture(
    params=[
        "loop",
        *(pytest.param(kind, marks=pytest.mark.soak(part="matrix")) for kind in sorted(GROUNDS) if kind != "loop"),
    ]
)
def ground(request: pytest.FixtureRequest, corner: Path) -> Ground:
    """A home for a pool of this kind: `native`, `loop` or `copy`."""
    return GROUNDS[request.param](corner)


@pytest.fixture
def pool(ground: Ground) -> Iterator[Pool]:
    """A new pool of each kind."""
    pool = ground.open()
    yield pool
    pool.close()
