"""Many checkpoints in a row on one branch: each of them is kept as it was, and comes back, from the store, too."""

import os
import random

import pytest

from tests.acceptance.moments import says, started
from tests.acceptance.people import Person
from tests.homes import Home
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

CHAIN = int(os.environ.get("WAYPOINT_TEST_CHAIN", "15"))
RESTORES = 4


def test_any_of_a_long_chain_of_checkpoints_is_exactly_what_it_was(home: Home, person: Person) -> None:
    chosen = random.Random(4711).sample(range(CHAIN), min(RESTORES, CHAIN))
    with started(home, person.name) as session:
        session.exec("mkdir chain; cd chain; sleep 1000 &")
        for number in range(CHAIN):
            session.exec(
                f"number={number}; list+=({number}); echo {number} >file; echo {number} >>all; touch f{number}"
            )
            session.checkpoint(f"{session.branch}.n{number}", tier="live", wait=number == CHAIN - 1)
        for count, number in enumerate(chosen):
            if count == RESTORES // 2:
                evicted = Client(home.path).disk.evict(*(f"{session.branch}.n{one}" for one in range(CHAIN)))
                assert (len(evicted.evicted), evicted.kept) == (CHAIN, [])
            session.restore(f"{session.branch}.n{number}")
            said = says(
                session, "echo $number ${#list[@]}; cat file; wc -l <all; tail -n 1 all; ls f* | wc -l; jobs %1"
            )
            expected = [f"{number} {number + 1}", *map(str, (number, number + 1, number, number + 2))]
            assert said.splitlines()[:-1] == expected
            assert "sleep 1000" in said
