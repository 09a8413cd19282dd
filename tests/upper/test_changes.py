"""Counting what a session has changed: quickly, however much that is."""

from pathlib import Path

from waypoint.upper.changes import MOST, count_changes


def fill(tree: Path, mount: str, names: list[str]) -> None:
    for name in names:
        place = tree / mount / "upper" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def test_files_of_all_mounts_count_and_folders_and_our_own_do_not(tmp_path: Path) -> None:
    fill(tmp_path, "m0", ["a", "etc/b", "etc/deep/c", "run/waypoint/nonce", "run/other"])
    fill(tmp_path, "m%2Fhome", ["d"])
    (tmp_path / "m0/upper/link").symlink_to("/nowhere")
    (tmp_path / "m0/work/work").mkdir(parents=True)
    assert count_changes(str(tmp_path)) == (6, False)


def test_no_more_is_looked_at_than_is_said(tmp_path: Path) -> None:
    fill(tmp_path, "m0", [f"f{number}" for number in range(MOST + 1)])
    assert count_changes(str(tmp_path)) == (MOST, True)
    assert count_changes(str(tmp_path), MOST + 1) == (MOST + 1, False)
