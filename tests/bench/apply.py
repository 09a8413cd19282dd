"""`waypoint apply`: many small files of a branch onto the machine, beside `cp -a` of the same files."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from tests.acceptance.sessions import OF_THE_BASE, ground_of
from tests.bench.frame import Figure, Sizes, ms_of_command, times_floor_at_most
from tests.homes import Home, open_home
from tests.places import make_temp_root

_FILL = """import os
for folder in range({folders}):
    os.makedirs(f"{place}/d{{folder}}")
    for name in range(100):
        with open(f"{place}/d{{folder}}/f{{name}}", "w") as file:
            file.write("content " * 100)
"""


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    within = None if sizes.quick else make_temp_root()
    with open_home("bench", within) as home, ground_of(OF_THE_BASE) as ground:
        yield [_figure(home, ground, 1000 if sizes.quick else 10_000)]


def _figure(home: Home, ground: Path, count: int) -> Figure:
    place, model, numbers = ground / "many", ground / "model", itertools.count()
    apply = home.argv("apply", "changed", "--", str(place))
    home.must("shell", "changed", "-d")
    fill = _FILL.format(folders=count // 100, place=place)
    home.must("run", "-b", "changed", "--", "python3", "-c", fill, timeout_s=300)
    home.must("stop", "changed")
    ms_of_command(apply, home.env)
    place.rename(model)

    def copied_ms() -> float:
        return ms_of_command(["cp", "-a", str(model), str(ground / f"copy-{next(numbers)}")])

    def put_aside() -> None:
        """Nothing is removed: beside many inodes that were just freed, ext4 is slow to find one for a new file."""
        if place.exists():
            place.rename(ground / f"applied-{next(numbers)}")

    return Figure(
        f"apply of {count} new files, command",
        "ms",
        lambda: ms_of_command(apply, home.env),
        copied_ms,
        "cp -a",
        times_floor_at_most(1.5),
        before=put_aside,
        max_runs=5,
    )
