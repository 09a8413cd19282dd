"""Reports of failures of the programs that the router starts."""

import pytest

from waypoint.egress import router
from waypoint.linux.calls import programs


def test_an_nft_that_hangs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find", lambda _name: "/bin/sleep")
    monkeypatch.setattr(router, "_PROGRAM_S", 0.05)
    with pytest.raises(OSError, match="nft did not end within"):
        router._nft(["1000"])
