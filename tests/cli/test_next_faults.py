"""What is advised when something has gone wrong is done as it is printed: it helps, and nothing is worse afterwards."""

import re

import pytest

from tests.cli.next_faults import CASES, Case
from tests.cli.test_next_steps import COMMAND, check_shells, follow, is_of, next_of, state
from tests.cli.test_next_steps import stocked as stocked
from tests.homes import Home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]


def commands_of(case: Case, printed: str) -> list[str]:
    """What a reader types who follows the step `printed`."""
    if case.follow:
        return [case.follow]
    found = [next(filter(None, groups)).strip() for groups in COMMAND.findall(printed)]
    for word, filled in case.fill.items():
        found = [re.sub(rf"\b{word}\b", filled, command) for command in found]
    return found


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=pytest.mark.requires(*case.needs)) for case in CASES]
)
def test_a_step_that_is_followed_after_a_fault_helps_and_costs_nothing(stocked: Home, case: Case) -> None:
    at_first = state(stocked)
    with case.meet(stocked) as said:
        printed = next_of(said)
        assert is_of(printed, case.advice), printed
        commands = commands_of(case, printed)
        assert commands, f"nothing to do in: {printed}"
        for command in commands:
            done = follow(stocked, command)
            assert done.code == 0, f"{command}: {done.stdout}"
        assert case.shows in done.stdout
    after = state(stocked)
    assert at_first["captures"] <= after["captures"]
    assert at_first["names"] <= after["names"]
    assert at_first["sessions"].items() <= after["sessions"].items()
    check_shells(stocked)
    for branch in case.makes:
        stocked.must("stop", branch)
