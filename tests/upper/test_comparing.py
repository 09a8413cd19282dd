"""The differences between two views, compared with those of full pictures of both."""

import os
import random
from pathlib import Path

import pytest

from tests.upper.overlays import Picture, Stack, make_stack, picture, random_history
from waypoint.linux.storage import access
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper.comparing import Change, Scope, changes, contents
from waypoint.upper.views import Pairs, Views, candidates

pytestmark = [pytest.mark.privileged]

HISTORIES = 60
ALL = Scope()


@pytest.fixture
def stack(corner: Path) -> Stack:
    return make_stack(corner)


def differences(stack: Stack, wanted: str, present: str = "", scope: Scope = ALL) -> list[Change]:
    with (
        stack.view(wanted) as one,
        stack.view(present) as other,
        open_folder(one) as wanted_root,
        open_folder(other) as present_root,
        Pairs(Views(wanted_root, present_root)) as pairs,
    ):
        uppers = [str(stack.upper(name)) if name else "" for name in (wanted, present)]
        return list(changes(candidates(*uppers, scope.concerns), pairs, scope))


def told(found: list[Change]) -> list[tuple[str, str]]:
    return [(change.path, change.how) for change in found]


def expected(wanted: Picture, present: Picture) -> dict[str, str]:
    found = {}
    for path in {*wanted, *present}:
        new, old = wanted.get(path), present.get(path)
        if new == old:
            continue
        if new is None or old is None:
            how = "added" if old is None else "removed"
        elif new[0] != old[0]:
            how = "type"
        else:
            how = "changed" if new[1] != old[1] else "attributes"
        found[os.fsdecode(path)] = how
    return found


def test_the_differences_of_random_histories_are_those_of_full_pictures(corner: Path) -> None:
    make_stack(corner)
    for seed in range(HISTORIES):
        stack = random_history(corner / f"history-{seed}", random.Random(seed), (25, 15, 8))
        for wanted, present in (("one", ""), ("other", "one"), ("one", "other"), ("other", "")):
            with stack.view(wanted) as shown:
                after = picture(shown)
            with stack.view(present) as shown:
                before = picture(shown)
            found = told(differences(stack, wanted, present))
            assert dict(found) == expected(after, before), f"seed {seed}: {present or 'base'} to {wanted}"
            assert len(dict(found)) == len(found), f"seed {seed}: a path is listed twice"


def test_a_replaced_folder_lists_the_removed_and_the_new_content(stack: Stack) -> None:
    (stack.base / "d").mkdir()
    (stack.base / "d/old").write_text("old")
    with stack.writable("one") as merged:
        (merged / "d/old").unlink()
        (merged / "d").rmdir()
        (merged / "d").mkdir()
        (merged / "d/new").touch()
    assert told(differences(stack, "one")) == [("d/new", "added"), ("d/old", "removed")]


def test_a_moved_folder_of_the_base_names_its_former_path(stack: Stack) -> None:
    (stack.base / "above/d").mkdir(parents=True)
    (stack.base / "above/d/file").write_text("x")
    with stack.writable("one") as merged:
        (merged / "above/d").rename(merged / "above/e")
        (merged / "above/e").rename(merged / "f")
    found = {change.path: change for change in differences(stack, "one")}
    assert {path: change.how for path, change in found.items()} == {
        "above/d": "removed",
        "above/d/file": "removed",
        "f": "added",
        "f/file": "added",
    }
    assert found["f"].source == "above/d"


def test_only_the_chosen_paths_are_compared_and_excluded_ones_never(stack: Stack) -> None:
    (stack.base / "gone/below").mkdir(parents=True)
    (stack.base / "gone/below/file").write_text("x")
    with stack.writable("one") as merged:
        (merged / "run").mkdir()
        (merged / "run/file").touch()
        (merged / "runner").touch()
        (merged / "gone").rename(merged / "moved")
    chosen = Scope(only=("gone/below", "runner"))
    assert told(differences(stack, "one", scope=chosen)) == [
        ("gone/below", "removed"),
        ("gone/below/file", "removed"),
        ("runner", "added"),
    ]
    left_out = Scope(only=("run", "runner"), excluded=("run",))
    assert told(differences(stack, "one", scope=left_out)) == [("runner", "added")]


def test_content_that_the_caller_may_not_read_is_compared_by_its_time(stack: Stack) -> None:
    for name in ("touched", "copied"):
        (stack.base / name).write_text("secret")
        (stack.base / name).chmod(0o600)
    with stack.writable("one") as merged:
        (merged / "touched").write_text("SECRET")
        os.utime(merged / "touched", (1, 1))
        (merged / "copied").chmod(0o640)
    # Plain folders in place of views, which only root may mount.
    with (
        open_folder(stack.upper("one")) as wanted,
        open_folder(stack.base) as present,
        Pairs(Views(wanted, present)) as pairs,
    ):
        differing = candidates(str(stack.upper("one")), "", ALL.concerns)
        with access.as_user(65534, 65534, ()):
            found = list(changes(differing, pairs, ALL))
            with pytest.raises(PermissionError):
                contents(found[0], pairs, 100)
    assert told(found) == [("copied", "attributes"), ("touched", "changed")]
