"""A home with its socket in a directory of the test, so that root is not needed."""

from pathlib import Path

import pytest

from waypoint.model import paths


@pytest.fixture
def socket(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the control socket of `HOME`. It is short because a socket's path may have only 107 bytes."""
    monkeypatch.setattr(paths, "RUNTIME", str(tmp_path_factory.mktemp("r")))
    return Path(paths.socket_path(HOME))


HOME = "/nonexistent/home"
