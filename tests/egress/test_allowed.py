"""The values that `--allow-net` accepts."""

import pytest

from waypoint.egress import allowed
from waypoint.model.errors import UsageProblem


def test_names_and_networks_are_accepted_and_nothing_else() -> None:
    allowed.check(["pypi.org", "a_b.example.", "10.1.0.0/16", "fd00::/8", f"{'a' * 63}.org"])
    for entry in ("", "a b", "a..b", "10.1.0.0/33", "*.org", f"{'a' * 64}.org"):
        with pytest.raises(UsageProblem):
            allowed.check([entry])
        allowed.resolve([entry], [])  # no error: a record of an earlier version may have the entry
