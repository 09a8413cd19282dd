"""`python -m tests.bench [AREA...]`: measures, prints the table, writes JSON. A missed aim is no failure."""

import argparse
import dataclasses
import importlib
import pkgutil
import sys
from pathlib import Path

import tests.bench
from tests.bench.frame import RUNS, Row, Sizes, machine, markdown, measured, save, table

QUICK_RUNS = 3
NO_AREAS = {"claude", "curves", "frame", "ground", "inside", "load", "peers", "raw_criu", "__main__"}


def areas() -> list[str]:
    return sorted(found.name for found in pkgutil.iter_modules(tests.bench.__path__) if found.name not in NO_AREAS)


def rows_of(area: str, sizes: Sizes) -> list[Row]:
    module = importlib.import_module(f"tests.bench.{area}")
    with module.figures(sizes) as figures:
        rows = []
        for figure in figures:
            print(f"measuring: {area}: {figure.name}", file=sys.stderr)
            rows.append(measured(figure, sizes))
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench", description="Figures beside their floors.")
    parser.add_argument("areas", metavar="AREA", nargs="*", help=f"one of {', '.join(areas())} (default: all)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures to FILE")
    parser.add_argument(
        "--curves",
        metavar="FOLDER",
        type=Path,
        help="only measure curves of pauses and forks (over processes, memory, files, forks); write CSV and SVG there",
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--runs", metavar="N", type=int, help=f"runs of each figure (default: {RUNS})")
    parser.add_argument(
        "--quick", action="store_true", help=f"small sizes and {QUICK_RUNS} runs: shows that everything works"
    )
    parser.add_argument("--smoke", action="store_true", help="small sizes, each figure once, no verdict")
    asked = parser.parse_args()
    unknown = set(asked.areas) - set(areas())
    if unknown:
        parser.error(f"no such area: {', '.join(sorted(unknown))}")
    runs = 1 if asked.smoke else QUICK_RUNS if asked.quick else RUNS
    sizes = Sizes(runs=runs if asked.runs is None else asked.runs, quick=asked.quick or asked.smoke)
    if sizes.runs < 1:
        parser.error("--runs must be at least 1")
    if asked.curves:
        from tests.bench.curves import write

        write(asked.curves, sizes)
        return
    rows = [row for area in asked.areas or areas() for row in rows_of(area, sizes)]
    print(" ".join(f"{name}={value}" for name, value in machine().items()))
    if asked.smoke:
        rows = [dataclasses.replace(row, verdict="not judged") for row in rows]
    print(markdown(rows) if asked.markdown else table(rows))
    if asked.json:
        save(asked.json, rows)


if __name__ == "__main__":
    main()
