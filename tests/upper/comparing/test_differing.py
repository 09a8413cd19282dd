"""What is told of an upper directory is what an overlay shows of it."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.upper.comparing.overlays import Layered, applied

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root")]

NAMES = ("a", "b", "c", "\udcff\n")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
ACTS = st.lists(st.tuples(st.integers(0, 10), PATHS, PATHS), max_size=14)
EXAMPLES = settings(
    max_examples=int(os.environ.get("WAYPOINT_TEST_TREES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def furnish(base: Path) -> None:
    for one in NAMES[:3]:
        for two in NAMES[1:]:
            (base / one / two).mkdir(parents=True)
            (base / one / two / "a").write_text(one)
        (base / one / "a").write_text(one * 9)
        (base / one / "a").chmod(0o640)


def act(root: Path, number: int, path: str, other: str) -> None:
    """One thing that a session may do; nothing if it cannot be done there."""
    place = root / path
    with contextlib.suppress(OSError):
        if number < 4:
            write(place, number, other)
        else:
            move(place, number, root / other)


def write(place: Path, number: int, text: str) -> None:
    match number:
        case 0:
            place.write_bytes(os.fsencode(text))
        case 1:
            place.open("ab").close()  # copies a file up, unchanged
        case 2:
            mode = place.stat().st_mode & 0o777
            place.chmod(0o777)
            place.chmod(mode)
        case _:
            place.chmod(0o700)


def move(place: Path, number: int, target: Path) -> None:
    match number:
        case 4:
            place.rename(target)
        case 5:
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
        case 8:
            shutil.rmtree(place)
            place.mkdir()
        case 6:
            place.mkdir()
        case 7:
            place.symlink_to(target.name)
        case 9:
            os.setxattr(place, "user.x", os.fsencode(target))
        case _:
            os.link(place, target)


def work(root: Path, acts: list[tuple[int, str, str]]) -> None:
    for one in acts:
        act(root, *one)


@EXAMPLES
@given(acts=ACTS)
def test_a_base_with_the_changes_is_what_the_overlay_shows(ground: Layered, acts: list[tuple[int, str, str]]) -> None:
    ground.renew(furnish)
    with ground.mounted("now") as root:
        work(root, acts)
    assert applied(ground, None, "now") == ground.picture("now")


@EXAMPLES
@given(acts=ACTS, further=ACTS, elsewhere=ACTS)
def test_of_two_trees_it_is_what_the_second_overlay_shows(
    ground: Layered,
    acts: list[tuple[int, str, str]],
    further: list[tuple[int, str, str]],
    elsewhere: list[tuple[int, str, str]],
) -> None:
    ground.renew(furnish)
    with ground.mounted("one") as root:
        work(root, acts)
    ground.copied("one", "other")
    with ground.mounted("other") as root:
        work(root, further)
    with ground.mounted("one") as root:
        work(root, elsewhere)
    assert applied(ground, "one", "other") == ground.picture("other")
    assert ground.told("one", "one") == []
