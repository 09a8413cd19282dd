"""A home whose control socket lies in a temporary directory, so that the tests need no root."""

from pathlib import Path

import pytest

from waypoint.model import paths


@pytest.fixture
def socket(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the control socket of `HOME`; short, as the path of a socket may have only 107 bytes."""
    monkeypatch.setattr(paths, "RUNTIME", str(tmp_path_factory.mktemp("r")))
    return Path(paths.socket_path(HOME))


HOME = "/nonexistent/home"
