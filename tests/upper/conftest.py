"""The three grounds that the contract is held on."""

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
    """A home on which the driver named by the parameter works: `native`, `loop` or `copy`."""
    return GROUNDS[request.param](corner)


@pytest.fixture
def pool(ground: Ground) -> Iterator[Pool]:
    """A fresh one on each of the grounds."""
    pool = ground.open()
    yield pool
    pool.close()
