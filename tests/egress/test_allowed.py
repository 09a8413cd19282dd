"""What `--allow-net` takes."""

import pytest

from waypoint.egress import allowed
from waypoint.model.errors import UsageProblem


@pytest.mark.parametrize("entry", ["pypi.org", "a_b.example.", "10.1.0.0/16", "fd00::/8", f"{'a' * 63}.org"])
def test_names_and_networks(entry: str) -> None:
    allowed.check([entry])


@pytest.mark.parametrize("entry", ["", "a b", "a..b", "10.1.0.0/33", "*.org", f"{'a' * 64}.org"])
def test_nothing_else(entry: str) -> None:
    with pytest.raises(UsageProblem):
        allowed.check([entry])
    allowed.resolve([entry], [])  # as a record of an earlier version may have
