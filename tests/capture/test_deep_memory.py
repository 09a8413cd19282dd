"""Captured files of /dev/shm in folders that are nested deeper than Python's recursion limit."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.linux.test_deep import make_levels
from waypoint.capture.layers.files import FILES
from waypoint.capture.layers.hot import Hot


@pytest.mark.soak(part="load")
def test_deep_folders_are_measured_and_removed(tmp_path: Path) -> None:
    hot = Hot(tmp_path)
    hot.make("capture")
    area: Any = SimpleNamespace(hot=hot)
    origin: Any = SimpleNamespace(id="capture")
    assert FILES.memory_bytes(area, origin) == 0
    hot.memory("capture").mkdir()
    (hot.memory("capture") / "full").write_bytes(bytes(5000))
    make_levels(hot.memory("capture"), 1100)
    assert FILES.memory_bytes(area, origin) == 8192
    hot.remove("capture")
    hot.remove("capture")
    assert hot.list() == []
