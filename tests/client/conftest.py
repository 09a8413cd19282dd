"""A home whose socket lies in a folder of the test's, so that no root is needed."""

from pathlib import Path

import pytest

from waypoint.model import paths


@pytest.fixture
def socket(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the control socket of `HOME` is to be. Short, as a socket's path may have only 107 bytes."""
    monkeypatch.setattr(paths, "RUNTIME", str(tmp_path_factory.mktemp("r")))
    return Path(paths.socket_path(HOME))


HOME = "/nonexistent/home"
