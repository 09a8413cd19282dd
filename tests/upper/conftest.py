"""The three grounds that the contract is held on."""

from pathlib import Path

import pytest

from tests.corner import corner as corner
from tests.upper.grounds import GROUNDS, Ground


@pytest.fixture(params=sorted(GROUNDS))
def ground(request: pytest.FixtureRequest, corner: Path) -> Ground:
    """A home on which the driver named by the parameter works: `native`, `loop` or `copy`."""
    return GROUNDS[request.param](corner)
