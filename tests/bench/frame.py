"""What every area of the benchmark is built on: figures, measuring them in turns with their floors, judging, printing.

An area is a module of this package with

    @contextlib.contextmanager
    def figures(sizes: Sizes) -> Iterator[list[Figure]]

which opens what it measures on (a home, a session) and closes it. Out of scope: what is measured.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.needs import missing

RUNS = 20
WARM_UPS = 2

Verdict = Literal["met", "missed", "no aim"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much to measure with. `quick`: small amounts of data, for a run that only shows that nothing is broken."""

    runs: int = RUNS
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Aim:
    """What a median should be. `said` is how it is printed; `holds` gets the median and the floor's, if any."""

    said: str
    holds: Callable[[float, float | None], bool]


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing to measure. `measure` does it once and returns the figure in `unit`; `floor` does the least possible.

    `max_runs` bounds the number of runs of what takes minutes; `before` prepares each run and is not measured.
    """

    name: str
    unit: str
    measure: Callable[[], float]
    floor: Callable[[], float] | None = None
    floor_name: str = ""
    aim: Aim | None = None
    before: Callable[[], object] | None = None
    max_runs: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `p90` is the slow end: the 90th percentile of times, the 10th of rates."""

    name: str
    unit: str
    median: float
    p90: float
    floor: float | None
    floor_name: str
    aim: str
    verdict: Verdict
    runs: int


def at_most(limit: float, unit: str) -> Aim:
    return Aim(f"<= {limit:g} {unit}", lambda median, _: median <= limit)


def at_least(limit: float, unit: str) -> Aim:
    return Aim(f">= {limit:g} {unit}", lambda median, _: median >= limit)


def above_floor_at_most(limit: float, unit: str) -> Aim:
    return Aim(f"<= floor + {limit:g} {unit}", lambda median, floor: median - (floor or 0.0) <= limit)


def times_floor_at_most(factor: float) -> Aim:
    return Aim(f"<= {factor:g} x floor", lambda median, floor: median <= factor * (floor or 0.0))


def share_of_floor_at_least(share: float) -> Aim:
    return Aim(f">= {share:.0%} of floor", lambda median, floor: median >= share * (floor or 0.0))


def both(first: Aim, second: Aim) -> Aim:
    return Aim(f"{first.said}, {second.said}", lambda *given: first.holds(*given) and second.holds(*given))


def can_measure(what: str, needs: str) -> bool:
    """Whether the machine has what the figures about `what` need (a word of tests/needs.py). If not, says so."""
    why_not = missing(needs)
    if why_not:
        print(f"{what}: no figures without {needs}: {why_not}", file=sys.stderr)
    return not why_not


def seconds_of(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def ms_of_command(argv: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Milliseconds from the start of a process to its end. Raises RuntimeError with its words if it fails."""
    start = time.perf_counter()
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    taken_s = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: status {done.returncode}: {done.stderr.decode(errors='replace')}")
    return 1000 * taken_s


def measured(figure: Figure, sizes: Sizes) -> Row:
    """Measure in turns with the floor, so that whatever else the machine does falls on both."""
    wanted = min(sizes.runs, figure.max_runs or sizes.runs)
    values: list[float] = []
    floors: list[float] = []
    for turn in range(-min(WARM_UPS, wanted - 1), wanted):
        floor = figure.floor() if figure.floor else None
        if figure.before:
            figure.before()
        value = figure.measure()
        if turn >= 0:
            values.append(value)
            floors += [] if floor is None else [floor]
    median = statistics.median(values)
    floor_median = statistics.median(floors) if floors else None
    return Row(
        name=figure.name,
        unit=figure.unit,
        median=median,
        p90=_slow_end(values, is_rate=figure.unit.endswith("/s")),
        floor=floor_median,
        floor_name=figure.floor_name,
        aim=figure.aim.said if figure.aim else "",
        verdict=_verdict(figure.aim, median, floor_median),
        runs=wanted,
    )


def _slow_end(values: list[float], *, is_rate: bool) -> float:
    if len(values) < 2:
        return values[0]
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return tenths[0] if is_rate else tenths[-1]


def _verdict(aim: Aim | None, median: float, floor: float | None) -> Verdict:
    if aim is None:
        return "no aim"
    return "met" if aim.holds(median, floor) else "missed"


HEAD = ("figure", "median", "p90", "floor", "aim", "verdict", "runs")


def table(rows: Sequence[Row]) -> str:
    """Aligned columns; names to the left, numbers to the right."""
    cells = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    left = {0, 4, 5}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def _cells(row: Row) -> tuple[str, ...]:
    floor = "" if row.floor is None else f"{_number(row.floor)} ({row.floor_name})"
    median = f"{_number(row.median)} {row.unit}"
    return (row.name, median, _number(row.p90), floor, row.aim, row.verdict, str(row.runs))


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, str | int | float]:
    """What the figures were taken on; the load tells how far to trust them."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpus": os.cpu_count() or 0,
        "load": os.getloadavg()[0],
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def save(path: Path, rows: Sequence[Row]) -> None:
    facts = [{name: getattr(row, name) for name in Row.__slots__} for row in rows]
    path.write_text(json.dumps({"machine": machine(), "rows": facts}, indent=2) + "\n")
