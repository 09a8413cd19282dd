"""The benchmark measures each figure alternately with its floor (the least possible value), and judges the median."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bench.frame import (
    Aim,
    Figure,
    Sizes,
    above_floor_at_most,
    at_least,
    at_most,
    both,
    markdown,
    measured,
    ms_of_command,
    share_of_floor_at_least,
)


def test_figure_and_floor_are_measured_alternately_after_two_warm_up_runs() -> None:
    order: list[str] = []
    values = iter([100.0, 100.0, 1.0, 2.0, 3.0])

    def step(name: str, value: float) -> float:
        order.append(name)
        return value

    figure = Figure("f", "ms", lambda: step("figure", next(values)), floor=lambda: step("floor", 1.0))
    assert measured(figure, Sizes(runs=3)).median == 2.0
    assert order == ["floor", "figure"] * 5


@pytest.mark.parametrize(
    ("aim", "verdict"),
    [
        (None, "no aim"),
        (at_most(5, "ms"), "met"),
        (at_most(4, "ms"), "missed"),
        (at_least(6, "ms"), "missed"),
        (above_floor_at_most(1, "ms"), "missed"),
        (share_of_floor_at_least(1.5), "met"),
        (both(at_most(5, "ms"), above_floor_at_most(1, "ms")), "missed"),
    ],
)
def test_the_median_is_judged_by_its_aim(aim: Aim | None, verdict: str) -> None:
    assert measured(Figure("f", "ms", lambda: 5.0, floor=lambda: 3.0, aim=aim), Sizes(runs=3)).verdict == verdict


def test_a_failing_command_raises_an_error() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        ms_of_command(["sh", "-c", "echo no such thing >&2; exit 3"])


def test_a_curve_is_written_as_csv_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("leather")  # an environment that was made before this dependency
    from tests.bench.curves import Curve, save

    points = {1: {"pause": 10.5, "raw dump": 8.0}, 64: {"pause": 30.25, "raw dump": 21.0}}
    save(tmp_path, Curve("processes", "processes", points))
    assert (tmp_path / "processes.csv").read_text().splitlines() == [
        "processes,pause (ms),raw dump (ms)",
        "1,10.5,8.0",
        "64,30.25,21.0",
    ]
    drawn = ElementTree.parse(tmp_path / "processes.svg").getroot()
    assert {"pause", "raw dump", "processes"} <= {(text.text or "").strip() for text in drawn.findall(".//{*}text")}


def test_a_table_in_markdown_has_floor_and_verdict() -> None:
    row = measured(Figure("pause", "ms", lambda: 20.0, lambda: 15.0, "raw dump", at_most(12, "ms")), Sizes(runs=1))
    assert markdown([row]).splitlines()[-1] == "| pause | 20 ms | 20 | 15 (raw dump) | <= 12 ms: missed |"
