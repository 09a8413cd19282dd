"""Counting the changes of a session, and inspecting mount points in them."""

from pathlib import Path

import pytest

from waypoint.upper import changes
from waypoint.upper.changes import MOST, InPlace, count_changes, look_at


def fill(tree: Path, mount: str, names: list[str]) -> None:
    for name in names:
        place = tree / mount / "upper" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def test_files_of_all_mounts_count_but_not_folders_and_waypoints_own_files(tmp_path: Path) -> None:
    fill(tmp_path, "m0", ["a", "etc/b", "etc/deep/c", "run/waypoint/nonce", "run/other"])
    fill(tmp_path, "m%2Fhome", ["d"])
    (tmp_path / "m0/upper/link").symlink_to("/nowhere")
    (tmp_path / "m0/work/work").mkdir(parents=True)
    assert count_changes(str(tmp_path))[:2] == (6, False)


@pytest.mark.soak(part="load")
def test_counting_stops_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "m0", [f"f{number}" for number in range(MOST + 1)])
    assert count_changes(str(tmp_path))[:2] == (MOST, True)
    monkeypatch.setattr(changes, "MOST", MOST + 1)
    assert count_changes(str(tmp_path))[:2] == (MOST + 1, False)


def test_the_content_at_a_mount_point_is_classified(tmp_path: Path) -> None:
    expected = {
        "srv/": InPlace.NOTHING,
        "srv/data/": InPlace.NOTHING,
        "srv/data/file": InPlace.FILES,
        "srv/data": InPlace.ELSE,
        "srv -> /etc": InPlace.ELSE,
        "srv/data -> .": InPlace.ELSE,
    }
    for number, (made, found) in enumerate(expected.items()):
        path, _, target = made.partition(" -> ")
        place = tmp_path / str(number) / path
        place.parent.mkdir(parents=True)
        if target:
            place.symlink_to(target)
        elif path.endswith("/"):
            place.mkdir()
        else:
            place.touch()
        assert look_at(str(tmp_path / str(number)), "srv/data") is found, made
    for missing in (tmp_path, tmp_path / "gone"):
        assert look_at(str(missing), "srv/data") is InPlace.NOTHING


def test_a_folder_replaced_by_a_link_during_the_walk_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "up/srv/data").mkdir(parents=True)
    (tmp_path / "else/data/file").mkdir(parents=True)

    def swap(folder: str | int) -> bool:
        if not (tmp_path / "up/srv").is_symlink():
            (tmp_path / "up/srv").rename(tmp_path / "up/was")
            (tmp_path / "up/srv").symlink_to(tmp_path / "else")
        return False

    monkeypatch.setattr(changes, "stands_alone", swap)
    assert look_at(str(tmp_path / "up"), "srv/data") is InPlace.NOTHING
