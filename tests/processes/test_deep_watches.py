"""The search for the names of watched files, in folders that are deeper than Python calls functions."""

from pathlib import Path

from tests.linux.test_deep import make_levels
from waypoint.linux.storage import deep
from waypoint.linux.storage.descriptors import open_folder
from waypoint.processes import watches


def test_deep_folders_are_searched(tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    make_levels(tmp_path / "upper", 1100)
    with open_folder(tmp_path / "upper") as upper:
        assert watches._find_renamed(upper) == ({}, {})
        assert [*watches._folders_near(upper)] == ["", "k", "k/k"]
    deep.remove_path(tmp_path / "upper")
