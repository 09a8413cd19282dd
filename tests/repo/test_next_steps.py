"""Every next step that the program advises is followed by a test."""

import ast
from pathlib import Path

import pytest

from tests.cli import next_faults, next_machine
from tests.cli.next_rows import ELSEWHERE, ROWS
from tests.places import ROOT
from tests.repo import next_steps, tree

FOLLOWED = {row.advice for row in ROWS} | set(ELSEWHERE)
FOLLOWED |= {case.advice for case in next_faults.CASES} | next_machine.ON_THE_MACHINE

OF_OTHER_MACHINES = {
    # takes a kernel with a module that has a masked path, or a processor that can be taken away
    "make it appear again: load the kernel module, or bring the processor online",
    "load the kernel module btrfs",  # takes a kernel that has btrfs as a module, or not at all
}
"""Steps that no test can follow on the machine that the tests need; each with what it would take."""


def test_every_step_is_followed_by_a_test() -> None:
    assert next_steps.advised() - FOLLOWED - OF_OTHER_MACHINES == set()


def test_the_lists_hold_nothing_that_the_program_does_not_advise() -> None:
    assert (FOLLOWED | OF_OTHER_MACHINES) - next_steps.advised() == set()


def test_what_is_followed_is_not_on_the_list() -> None:
    assert set() == FOLLOWED & OF_OTHER_MACHINES


def test_the_tests_elsewhere_exist() -> None:
    assert [path for path in ELSEWHERE.values() if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("raise Failed('a', 'b', 'c', 'do this')", {"do this"}),
        ("raise errors.Failed('a', 'b', 'c', next_step=f'see {x}')", {"see {}"}),
        ("step = 'one' if x else 'two'\nraise Failed('a', 'b', 'c', step)", {"one", "two"}),
        ("said, step = 'a', f'b {c}'\nraise Failed('a', 'b', said, step)", {"b {}"}),
        ("S = {1: 'x', 2: 'y'}\nraise Failed('a', 'b', 'c', S.get(1, 'z'))", {"x", "y"}),
        (
            "from waypoint.setup.rows import CHOOSE_ANOTHER\nraise Failed('a', 'b', 'c', CHOOSE_ANOTHER)",
            {"set WAYPOINT"},
        ),
    ],
)
def test_a_step_is_seen_however_it_is_written(source: str, found: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    trial, parsed = Path("waypoint/trial.py"), tree.parsed
    monkeypatch.setattr(tree, "python_files", lambda *_: [trial])
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source) if path == trial else parsed(path))
    seen = next_steps.advised.__wrapped__()
    assert {text[:12] for text in seen} == {text[:12] for text in found}
