"""`waypoint diff`: a session with many changed files, beside listing the same files with their sizes."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.bench.frame import Figure, Sizes, at_most, ms_of_command, seconds_of
from tests.homes import Home, open_home
from tests.places import make_temp_root

_FILL = """import os
for folder in range({folders}):
    os.makedirs(f"/srv/many/d{{folder}}")
    for name in range(100):
        with open(f"/srv/many/d{{folder}}/f{{name}}", "w") as file:
            file.write("content")
"""


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    many, few = (2000, 1000) if sizes.quick else (100_000, 10_000)
    with open_home("bench", None if sizes.quick else make_temp_root()) as home:
        yield [figure for count in (few, many) for figure in _figures(home, count)]


def _figures(home: Home, count: int) -> list[Figure]:
    branch = f"changed-{count}"
    home.must("shell", branch, "-d")
    home.must("run", "-b", branch, "--", "python3", "-c", _FILL.format(folders=count // 100), timeout_s=300)
    pid = next(one["pid"] for one in home.must("ps", "--json").json() if one["branch"] == branch)
    folder = Path(f"/proc/{pid}/root/srv/many")
    return [
        Figure(
            f"diff --stat of {count} changes, command",
            "ms",
            lambda: ms_of_command(home.argv("diff", branch, "--stat"), home.env),
            floor=lambda: 1000 * seconds_of(lambda: _list(folder)),
            floor_name="find -printf",
            aim=at_most(300 if count <= 10_000 else 3000, "ms"),
            max_runs=None if count <= 10_000 else 5,
        )
    ]


def _list(folder: Path) -> None:
    subprocess.run(["find", folder, "-printf", "%s %p\\n"], stdout=subprocess.DEVNULL, check=True)
