"""`./dev bench --curves FOLDER`: pauses and forks over the number of processes, MiB, files and forks.

Each curve is a CSV file and an SVG picture. Every point is the median of some runs, taken in turns with bare CRIU.
"""

import csv
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import leather

from tests.bench.forks import Server
from tests.bench.frame import Sizes
from tests.bench.ground import Ground, open_ground, take
from tests.bench.inside import Spinner, write_files
from waypoint.client.sdk import Session

RUNS, QUICK_RUNS = 5, 1
PAUSE, FORK = "pause, felt inside", "fork, its server has answered"
RAW_DUMP, RAW_RESTORE = "raw dump, frozen", "raw restore"
Measures = Mapping[str, Callable[[], float]]


class Curve(NamedTuple):
    """`x`: what the horizontal axis counts. `points`: by value of x, the milliseconds of each series."""

    name: str
    x: str
    points: dict[int, dict[str, float]]


def write(folder: Path, sizes: Sizes) -> None:
    """Measure all curves, and write them to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_ground("curves", sizes) as ground:
        if ground is None:
            return
        for curve in _curves(ground, sizes):
            save(folder, curve)
            print(f"written: {folder / curve.name}.csv and .svg", file=sys.stderr)


def save(folder: Path, curve: Curve) -> None:
    _write_csv(folder / f"{curve.name}.csv", curve)
    _draw(folder / f"{curve.name}.svg", curve)


def _curves(ground: Ground, sizes: Sizes) -> Iterator[Curve]:
    quick = sizes.quick
    yield _curve("processes", "processes", (1, 4) if quick else (1, 4, 16, 64), sizes, _with_processes(ground))
    yield _curve("memory", "MiB of a program", (1, 16) if quick else (1, 64, 256, 1024), sizes, _with_memory(ground))
    yield _curve("files", "changed files", (10, 1000) if quick else (10, 1000, 10_000, 100_000), sizes, _files(ground))
    yield _curve("forks", "forks at once", (1, 4) if quick else (1, 4, 12, 32, 64), sizes, _forks(ground))


def _curve(name: str, x: str, values: Sequence[int], sizes: Sizes, at: Callable[[int], Iterator[Measures]]) -> Curve:
    points: dict[int, dict[str, float]] = {}
    for value in values:
        for measures in at(value):
            print(f"measuring: {name}: {value}", file=sys.stderr)
            points[value] = _medians(measures, QUICK_RUNS if sizes.quick else min(RUNS, sizes.runs))
    return Curve(name, x, points)


def _medians(measures: Measures, runs: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in measures}
    for run in range(-1 if runs > 1 else 0, runs):  # the first only warms up
        for name, measure in measures.items():
            value = measure()
            if run >= 0:
                found[name].append(value)
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def _of_session(ground: Ground, server: Server, before: Callable[[], object] = lambda: None) -> Measures:
    spinner = Spinner(ground.home, server.session)

    def pause_ms() -> float:
        before()
        return spinner.gap_ms(lambda: take(server.session))

    def fork_ms() -> float:
        taken = server.forks_ms(1)
        server.discard_forks()
        return taken

    return {
        PAUSE: pause_ms,
        RAW_DUMP: lambda: ground.raw.dump(server.branch, in_memory=True).frozen_ms,
        FORK: fork_ms,
        RAW_RESTORE: lambda: ground.raw.restore_ms(server.branch, server.capture),
    }


def _with_processes(ground: Ground) -> Callable[[int], Iterator[Measures]]:
    def at(count: int) -> Iterator[Measures]:
        def start(session: Session) -> None:
            session.exec(f"for i in $(seq {count - 1}); do sleep 100000 & done")

        server = Server(ground, f"processes{count}", mib=0, prepare=start)
        yield _of_session(ground, server)
        server.end()

    return at


def _with_memory(ground: Ground) -> Callable[[int], Iterator[Measures]]:
    def at(mib: int) -> Iterator[Measures]:
        server = Server(ground, f"memory{mib}", mib)
        yield _of_session(ground, server)
        server.end()

    return at


def _files(ground: Ground) -> Callable[[int], Iterator[Measures]]:
    def at(count: int) -> Iterator[Measures]:
        server = Server(ground, f"files{count}", mib=0, prepare=lambda session: write_files(session, count, 100))
        yield _of_session(ground, server, lambda: write_files(server.session, 10, 100))
        server.end()

    return at


def _forks(ground: Ground) -> Callable[[int], Iterator[Measures]]:
    server = Server(ground, "many", mib=0)
    processors = len(os.sched_getaffinity(0))

    def at(count: int) -> Iterator[Measures]:
        def all_ms() -> float:
            taken = server.forks_ms(count)
            server.discard_forks()
            return taken

        def raw_ms() -> float:
            return ground.raw.restore_ms(server.branch, server.capture) * count / min(count, processors)

        yield {"all have answered": all_ms, f"raw restores, {processors} at once": raw_ms}

    return at


def _write_csv(path: Path, curve: Curve) -> None:
    names = list(next(iter(curve.points.values())))
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([curve.x, *(f"{name} (ms)" for name in names)])
        rows.writerows([x, *(row[name] for name in names)] for x, row in curve.points.items())


def _draw(path: Path, curve: Curve) -> None:
    chart = leather.Chart(f"Milliseconds over {curve.x}")
    names = list(next(iter(curve.points.values())))
    most = max(itertools.chain.from_iterable(row.values() for row in curve.points.values()))
    # The values of x grow by factors: they are evenly spaced, and the ticks have their labels.
    values, places = list(curve.points), range(len(curve.points))
    chart.add_x_axis(name=curve.x, ticks=list(places), tick_formatter=lambda place, *_: str(values[int(place)]))
    chart.add_x_scale(0, places[-1])
    chart.add_y_axis(name="ms")
    chart.add_y_scale(0, most)
    for name in names:
        chart.add_line([(place, curve.points[values[place]][name]) for place in places], name=name)
    chart.to_svg(str(path), width=720, height=400)
