"""A hundred checkpoints in a row on one branch: each restores exactly its own state."""

import os
import random

import pytest

from tests.acceptance.people import Person
from tests.acceptance.restoring import in_shell, started
from tests.homes import Home

pytestmark = [pytest.mark.soak(part="load"), pytest.mark.privileged, pytest.mark.requires("criu")]

CHAIN = int(os.environ.get("WAYPOINT_TEST_CHAIN", "100"))
RESTORES = 10


def test_any_checkpoint_of_a_long_chain_restores_its_exact_state(home: Home, person: Person) -> None:
    chosen = random.Random(4711).sample(range(CHAIN), min(RESTORES, CHAIN))
    with started(home, person.name) as session:
        session.exec("mkdir chain; cd chain; sleep 1000 &")
        for number in range(CHAIN):
            session.exec(
                f"number={number}; list+=({number}); echo {number} >file; echo {number} >>all; touch f{number}"
            )
            session.checkpoint(f"{session.branch}.n{number}", tier="live")
        for number in chosen:
            session.restore(f"{session.branch}.n{number}")
            said = in_shell(
                session, "echo $number ${#list[@]}; cat file; wc -l <all; tail -n 1 all; ls f* | wc -l; jobs %1"
            )
            count = number + 1
            expected = [f"{number} {count}", *map(str, (number, count, number, count + 1))]
            assert said.splitlines()[:-1] == expected
            assert "sleep 1000" in said
