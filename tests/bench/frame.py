"""The frame of the benchmark: measures figures alternately with their floors, judges and prints them.

An area is a module of this package with a context manager that opens what it needs (a home, a session):

    @contextlib.contextmanager
    def figures(sizes: Sizes) -> Iterator[Iterable[Figure]]
"""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

RUNS = 20
WARM_UPS = 2

Verdict = Literal["met", "missed", "no aim", "not judged"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """`quick`: small amounts of data, for a run that only shows that everything works."""

    runs: int = RUNS
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Aim:
    """The wanted median. `text` is printed; `holds` gets the figure's median and the floor's, if any."""

    text: str
    holds: Callable[[float, float | None], bool]


@dataclass(frozen=True, slots=True)
class Figure:
    """`measure` measures once and returns the figure in `unit`; `floor` measures the least that any program could take.

    `before` prepares each run and is not measured. `max_runs`: for figures that take minutes.
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
    return Aim(f"{first.text}, {second.text}", lambda *given: first.holds(*given) and second.holds(*given))


def seconds_of(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def ms_of_command(argv: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Milliseconds from the start of a process to its end. Raises RuntimeError with its stderr if it fails."""
    start = time.perf_counter()
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    taken_s = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: status {done.returncode}: {done.stderr.decode(errors='replace')}")
    return 1000 * taken_s


def measured(figure: Figure, sizes: Sizes) -> Row:
    """Measure figure and floor alternately, so that other load of the machine slows both."""
    wanted = min(sizes.runs, figure.max_runs or sizes.runs)
    values: list[float] = []
    floors: list[float] = []
    for run in range(-min(WARM_UPS, wanted - 1), wanted):
        floor = figure.floor() if figure.floor else None
        if figure.before:
            figure.before()
        value = figure.measure()
        if run >= 0:
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
        aim=figure.aim.text if figure.aim else "",
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


def markdown(rows: Sequence[Row]) -> str:
    """The table of docs/performance.md."""
    lines = ["| figure | median | slow tenth | floor | aim |", "|---|---|---|---|---|"]
    for row in rows:
        name, median, slow, floor, aim, verdict, _ = _cells(row)
        lines.append(f"| {name} | {median} | {slow} | {floor} | {f'{aim}: {verdict}' if aim else ''} |")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    floor = "" if row.floor is None else f"{_number(row.floor)} ({row.floor_name})"
    median = f"{_number(row.median)} {row.unit}"
    return (row.name, median, _number(row.p90), floor, row.aim, row.verdict, str(row.runs))


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, str | int | float]:
    """Describe the machine. With a high load the figures are less reliable."""
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
