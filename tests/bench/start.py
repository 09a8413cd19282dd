"""The time of a command that does nothing. The floor is a bare Python."""

import contextlib
import sys
from collections.abc import Iterator

from tests.bench.frame import Figure, Sizes, above_floor_at_most, ms_of_command
from tests.places import ROOT

BARE_PYTHON = [sys.executable, "-I", "-S", "-c", "pass"]
FLOOR_NAME = "python -I -S"


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    main = [sys.executable, "-I", "-S", str(ROOT / "waypoint/cli/main.py")]
    yield [
        Figure(
            name="waypoint --version (loads click)",
            unit="ms",
            measure=lambda: ms_of_command([*main, "--version"]),
            floor=lambda: ms_of_command(BARE_PYTHON),
            floor_name=FLOOR_NAME,
        ),
        Figure(
            name="the same through ./dev",
            unit="ms",
            measure=lambda: ms_of_command([str(ROOT / "dev"), "waypoint", "--version"]),
            floor=lambda: ms_of_command([*main, "--version"]),
            floor_name="without ./dev",
            aim=above_floor_at_most(15, "ms"),
        ),
    ]
