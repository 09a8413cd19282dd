"""What the machine has changed since the branch began is not changed, and nothing else is, either."""

import os
import shutil
from pathlib import Path

import pytest

from tests.applying.ground import Ground
from tests.upper.pictures import picture
from waypoint.branch.applying.choice import Choice
from waypoint.launch.ground.base import is_below
from waypoint.linux.storage import mounts
from waypoint.model.errors import StateConflict

pytestmark = pytest.mark.privileged


def _furnish(ground: Ground) -> None:
    for path in ("kept", "edited", "gone", "folder/inner/file", "folder/other", "old/file", "moved/file"):
        place = ground.base / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(path)
    ground.begin()


def _work(view: Path) -> None:
    (view / "edited").write_text("by the session")
    (view / "gone").unlink()
    (view / "made").write_text("by the session")
    (view / "folder/inner/file").write_text("by the session")
    (view / "old/file").unlink()
    (view / "old").rmdir()
    (view / "moved").rename(view / "new place")


def _change(ground: Ground, place: Path, act: str) -> None:
    match act:
        case "write":
            place.write_text("by the machine")
        case "replace":
            times = os.stat(place).st_mtime_ns
            (place.parent / "aside").write_text("edited")
            os.utime(place.parent / "aside", ns=(times, times))
            os.rename(place.parent / "aside", place)
        case "chmod":
            place.chmod(0o604)
        case "remove":
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        case "link":
            place.rename(ground.base.parent / "elsewhere")
            place.symlink_to(ground.base.parent / "elsewhere")
        case _:
            raise AssertionError(act)


def _conflicts(ground: Ground) -> list[str]:
    before = picture(ground.base)
    found = ground.apply()
    assert picture(ground.base) == before, "nothing is done where there is a conflict"
    assert ground.recorded == []
    assert found.conflicts_total == len(found.conflicts)
    return [line.path for line in found.conflicts]


@pytest.mark.parametrize(
    ("path", "act", "expected"),
    [
        ("edited", "write", ["/edited"]),
        ("edited", "replace", ["/edited"]),
        ("edited", "chmod", ["/edited"]),
        ("gone", "write", ["/gone"]),
        ("made", "write", ["/made"]),
        ("old/file", "write", ["/old"]),
        ("old/more", "write", ["/old"]),
        ("folder/inner/file", "write", ["/folder/inner/file"]),
        ("moved/file", "write", ["/moved", "/new place/file"]),
        ("new place", "write", ["/new place"]),
        ("folder", "remove", ["/folder"]),
        ("folder/inner", "link", ["/folder/inner"]),
        ("folder/other", "write", []),
        ("folder/more", "write", []),
        ("kept", "write", []),
        ("gone", "remove", []),
    ],
)
def test_a_change_of_the_machine(ground: Ground, path: str, act: str, expected: list[str]) -> None:
    _furnish(ground)
    with ground.session() as view:
        _work(view)
    ground.wait_for_clock()
    _change(ground, ground.base / path, act)
    outside = ground.base.parent / "elsewhere/file"
    place = ground.base / path
    if expected:
        assert _conflicts(ground) == expected
        _force(ground, expected)
        assert not outside.exists() or outside.read_text() == "folder/inner/file", "behind a link of the machine"
        return
    before = picture(ground.base)[os.fsencode(path)] if place.exists() else None
    assert ground.apply().conflicts == []
    assert (ground.base / "edited").read_text() == "by the session"
    assert (picture(ground.base)[os.fsencode(path)] if place.exists() else None) == before


NOT_FORCED = ["/folder", "/folder/inner", "/new place/file"]
"""Folders that the session has changed in part, and the machine has no more; and what it has changed of one that the
session has moved.
"""


def _force(ground: Ground, expected: list[str]) -> None:
    """What has changed since is replaced, and comes back; all else is refused as before."""
    before = picture(ground.base)
    found = ground.apply(force=True)
    fixed = [path for path in expected if path in NOT_FORCED]
    assert ([line.path for line in found.conflicts], found.fixed) == (fixed, len(fixed))
    assert found.replaced == [path for path in expected if path not in NOT_FORCED]
    if not fixed:
        assert (ground.base / "edited").read_text() == (ground.base / "made").read_text() == "by the session"
        assert not (ground.base / "gone").exists()
        assert ground.revert(ground.last).conflicts == []
    assert picture(ground.base) == before


def test_attributes_of_a_folder_by_force(ground: Ground) -> None:
    _furnish(ground)
    with ground.session() as view:
        (view / "folder").chmod(0o700)
    ground.wait_for_clock()
    (ground.base / "folder").chmod(0o711)
    assert _conflicts(ground) == ["/folder"]
    before = picture(ground.base)
    assert ground.apply(force=True, dry_run=True).replaced == ["/folder"]
    assert picture(ground.base) == before
    assert ground.apply(force=True).replaced == ["/folder"]
    assert (ground.base / "folder").stat().st_mode & 0o777 == 0o700
    assert ground.revert(ground.last).conflicts == []
    assert picture(ground.base) == before


def test_the_same_on_both_sides_is_no_conflict(ground: Ground) -> None:
    _furnish(ground)
    with ground.session() as view:
        _work(view)
        (view / "made").chmod(0o640)
    ground.wait_for_clock()
    (ground.base / "edited").write_text("by the session")
    (ground.base / "made").write_text("by the session")
    assert _conflicts(ground) == ["/made"]
    (ground.base / "made").chmod(0o640)
    found = ground.apply()
    assert found.conflicts == []
    assert [line.path for line in found.changes] == ["/folder/inner/file", "/gone", "/moved", "/new place", "/old"]


def test_chosen_paths_alone(ground: Ground) -> None:
    _furnish(ground)
    with ground.session() as view:
        _work(view)
        (view / "way/to").mkdir(parents=True)
        (view / "way/to/it").write_text("")
        (view / "way/not").write_text("")
    before = picture(ground.base)
    assert ground.apply("/folder", "/gone", "/way/to", "/nowhere").files == 3
    after = picture(ground.base)
    changed = {os.fsdecode(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == {"", "gone", "folder/inner/file", "way", "way/to", "way/to/it"}
    with pytest.raises(StateConflict, match="choose all of it: /old"):
        ground.apply("/old/file")
    with pytest.raises(StateConflict, match="was removed"):
        ground.apply("/moved/file")
    assert ground.apply("/old").files == 1


def test_what_the_session_has_applied_it_may_change_again(ground: Ground) -> None:
    """The machine's file has changed since the branch began, by the branch itself; and back, by an undo."""
    _furnish(ground)
    with ground.session() as view:
        _work(view)
    ground.wait_for_clock()
    assert ground.apply().conflicts == []
    first = ground.last
    with ground.session() as view:
        (view / "edited").write_text("once more")
        (view / "made").write_text("once more")
        (view / "new place/more").write_text("once more")
    ground.seen = [first]
    assert _known(ground) == []
    ground.seen = []
    assert _known(ground) == ["/edited", "/made", "/new place"], "strangers' changes, for whoever has not made them"
    before = picture(ground.base)
    assert ground.revert(first).conflicts == []
    back = ground.last
    ground.reverts = [back]
    assert ground.apply().conflicts == []
    again = ground.last
    assert (ground.base / "edited").read_text() == "once more"
    assert [line.path for line in ground.revert(first, [back]).conflicts] != []
    assert ground.revert(again).conflicts == []
    assert ground.revert(back, [ground.last]).conflicts == []
    assert picture(ground.base) == before


def _known(ground: Ground) -> list[str]:
    return [line.path for line in ground.apply(dry_run=True).conflicts]


@pytest.mark.parametrize("path", ["edited", "made", "new place/file", "gone", "old"])
def test_what_was_changed_since_it_was_applied_is_not_taken_back(ground: Ground, path: str) -> None:
    _furnish(ground)
    at_first = picture(ground.base)
    with ground.session() as view:
        _work(view)
    assert ground.apply().conflicts == []
    place = ground.base / path
    place.write_text("by somebody")
    before = picture(ground.base)
    applied, named = ground.last, path.removesuffix("/file")
    found = ground.revert(applied)
    assert [line.path for line in found.conflicts] == [f"/{named}"]
    assert picture(ground.base) == before
    # What was put elsewhere stands in no way.
    (ground.base / named).rename(ground.base / "elsewhere")
    assert ground.revert(applied).conflicts == []
    after = {name: found for name, found in picture(ground.base).items() if not name.startswith(b"elsewhere")}
    assert after.keys() == at_first.keys()
    assert {name: found for name, found in after.items() if name} == {name: at_first[name] for name in after if name}


def test_waypoints_own_places_stay(ground: Ground) -> None:
    _furnish(ground)
    (ground.base / "var/home").mkdir(parents=True)
    (ground.base / "var/home/names").write_text("")
    ground.begin()
    ground.hidden = ["/var/home", "/run", "/bound/here"]
    with ground.session() as view:
        (view / "var/home/names").unlink()
        (view / "var/home/made").write_text("")
        (view / "run").mkdir()
        (view / "run/made").write_text("")
        (view / "bound/here").mkdir(parents=True)
        (view / "var/beside").write_text("")
    before = set(ground.base.rglob("*"))
    assert ground.apply().files == 1
    assert set(ground.base.rglob("*")) - before == {ground.base / "var/beside"}
    with ground.session() as view:
        shutil.rmtree(view / "var")
    assert _conflicts_of(ground) == ["/var"]


def _conflicts_of(ground: Ground) -> list[str]:
    return [line.path for line in ground.apply().conflicts]


def test_a_mount_of_the_machine_is_not_entered(ground: Ground) -> None:
    _furnish(ground)
    with ground.session() as view:
        _work(view)
    mounts.mount("tmpfs", ground.base / "folder/inner", "tmpfs")
    mounts.mount("tmpfs", ground.base / "old", "tmpfs")
    try:
        assert _conflicts_of(ground) == ["/folder/inner", "/old"]
        assert list((ground.base / "folder/inner").iterdir()) == []
    finally:
        mounts.umount(ground.base / "folder/inner")
        mounts.umount(ground.base / "old")


@pytest.mark.parametrize("chosen", [[], ["/m/a"], ["/m/a/b", "/m/c"], ["/m"], ["/other"]])
@pytest.mark.parametrize("hidden", [[], ["/m/a/b"], ["/m/a", "/m/d"]])
def test_which_paths_an_apply_concerns(chosen: list[str], hidden: list[str]) -> None:
    """Also when names of one folder are asked about one after the other."""
    choice = Choice("/m", chosen, hidden)
    for path in ("", "a", "a/x", "a/b", "a/b/x", "a/b/y", "a/y", "c", "c/x", "c/y", "d", "d/x", "e"):
        whole = choice.shown(path)
        is_chosen = not chosen or any(is_below(whole, one) or is_below(one, whole) for one in chosen)
        assert choice.concerns(path) is (is_chosen and not any(is_below(whole, one) for one in hidden)), path
