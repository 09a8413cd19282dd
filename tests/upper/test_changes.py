"""Counting what a session has changed: quickly, however much that is."""

from pathlib import Path

import pytest

from waypoint.upper import changes
from waypoint.upper.changes import MOST, InPlace, count_changes, look_at


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


@pytest.mark.soak(part="load")
def test_no_more_is_looked_at_than_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "m0", [f"f{number}" for number in range(MOST + 1)])
    assert count_changes(str(tmp_path)) == (MOST, True)
    monkeypatch.setattr(changes, "MOST", MOST + 1)
    assert count_changes(str(tmp_path)) == (MOST + 1, False)


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ([], InPlace.NOTHING),
        (["srv/"], InPlace.NOTHING),
        (["srv/data/"], InPlace.NOTHING),
        (["srv/data/file"], InPlace.FILES),
        (["srv/data"], InPlace.ELSE),
        (["srv -> /etc"], InPlace.ELSE),
        (["srv/data -> ."], InPlace.ELSE),
    ],
)
def test_what_is_in_the_place_of_a_mount(tmp_path: Path, made: list[str], found: InPlace) -> None:
    for words in made:
        path, _, target = words.partition(" -> ")
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if target:
            (tmp_path / path).symlink_to(target)
        elif path.endswith("/"):
            (tmp_path / path).mkdir()
        else:
            (tmp_path / path).touch()
    assert look_at(str(tmp_path), "srv/data") is found
    assert look_at(str(tmp_path / "gone"), "srv/data") is InPlace.NOTHING


def test_no_link_is_followed_that_is_put_in_a_folder_s_place_during_the_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session that changes its files may run: here it puts a link to a folder with files there."""
    (tmp_path / "up/srv/data").mkdir(parents=True)
    (tmp_path / "else/data/file").mkdir(parents=True)

    def swap(folder: str | int) -> bool:
        if not (tmp_path / "up/srv").is_symlink():
            (tmp_path / "up/srv").rename(tmp_path / "up/was")
            (tmp_path / "up/srv").symlink_to(tmp_path / "else")
        return False

    monkeypatch.setattr(changes, "stands_alone", swap)
    assert look_at(str(tmp_path / "up"), "srv/data") is InPlace.NOTHING
