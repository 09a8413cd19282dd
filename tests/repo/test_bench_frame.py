"""The benchmark's frame measures fairly, judges rightly and prints readably."""

import json
from pathlib import Path

import pytest

from tests.bench.frame import (
    Aim,
    Figure,
    Row,
    Sizes,
    above_floor_at_most,
    at_least,
    at_most,
    both,
    measured,
    ms_of_command,
    save,
    share_of_floor_at_least,
    table,
)


def row_of(values: list[float], floors: list[float] | None = None, *, unit: str = "ms", aim: Aim | None = None) -> Row:
    """The row that comes of these values; the first ones serve for the warm-up too."""
    left, left_floors = [*values[:2], *values], [*(floors or [])[:2], *(floors or [])]
    figure = Figure(
        "f",
        unit,
        lambda: left.pop(0),
        floor=(lambda: left_floors.pop(0)) if floors else None,
        floor_name="bare",
        aim=aim,
    )
    return measured(figure, Sizes(runs=len(values)))


def test_thing_and_floor_are_measured_in_turns() -> None:
    order: list[str] = []

    def step(name: str) -> float:
        order.append(name)
        return 1.0

    figure = Figure("f", "ms", lambda: step("thing"), floor=lambda: step("floor"), before=lambda: step("before"))
    measured(figure, Sizes(runs=3))
    assert order == ["floor", "before", "thing"] * 5  # two of them to warm up


def test_warm_up_runs_do_not_count() -> None:
    values = iter([100.0, 100.0, 1.0, 2.0, 3.0])
    assert measured(Figure("f", "ms", lambda: next(values)), Sizes(runs=3)).median == 2.0


def test_the_slow_end_is_high_for_times_and_low_for_rates() -> None:
    values = [float(value) for value in range(1, 22)]
    assert (row_of(values).p90, row_of(values, unit="MB/s").p90) == (19.0, 3.0)


def test_a_figure_that_takes_minutes_is_run_as_often_as_it_allows() -> None:
    assert measured(Figure("f", "ms", lambda: 1.0, max_runs=2), Sizes(runs=20)).runs == 2


@pytest.mark.parametrize(
    ("aim", "verdict"),
    [
        (None, "no aim"),
        (at_most(5, "ms"), "met"),
        (at_most(4, "ms"), "missed"),
        (at_least(5, "ms"), "met"),
        (at_least(6, "ms"), "missed"),
        (above_floor_at_most(2, "ms"), "met"),
        (above_floor_at_most(1, "ms"), "missed"),
        (share_of_floor_at_least(1.5), "met"),
        (share_of_floor_at_least(1.7), "missed"),
        (both(at_most(5, "ms"), above_floor_at_most(1, "ms")), "missed"),
    ],
)
def test_the_median_is_judged_by_its_aim(aim: Aim | None, verdict: str) -> None:
    assert row_of([4.0, 5.0, 6.0], [3.0, 3.0, 3.0], aim=aim).verdict == verdict


def test_the_table_is_aligned() -> None:
    lines = table([row_of([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], aim=at_most(2, "ms")), row_of([1234.5] * 3)]).splitlines()
    assert lines[1].split() == ["f", "2", "ms", "2.8", "1", "(bare)", "<=", "2", "ms", "met", "3"]
    ends = {line.index(text) + len(text) for line, text in zip(lines, ["median", "2 ms", "1234 ms"], strict=True)}
    assert len(ends) == 1


def test_saved_figures_say_what_they_were_taken_on(tmp_path: Path) -> None:
    save(tmp_path / "figures.json", [row_of([1.0, 2.0, 3.0])])
    saved = json.loads((tmp_path / "figures.json").read_text())
    assert saved["rows"][0]["median"] == 2.0
    assert {"kernel", "cpus", "load", "python", "taken"} <= set(saved["machine"])


def test_a_command_that_fails_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        ms_of_command(["sh", "-c", "echo no such thing >&2; exit 3"])
