"""CRIU killed or stopped in the middle of what changes a live session: what happened once is made good by another CRIU,
what happens twice is an error, and never does a session lose its processes by it.
"""

import contextlib
import os
import re
import signal
import time

import pytest

from tests.faults import some
from tests.homes import Home
from tests.session import ledger
from tests.session.transactions import DUMPING, TRANSACTIONS, Ground, check_after
from tests.waiting import DEADLINE_S, PATIENCE_S
from waypoint.capture.layers.processes import HUNG_S
from waypoint.capture.steps import Step

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]


def hit(home: Home, number: signal.Signals) -> None:
    """Send the signal to every CRIU that works for the home; there is at least one."""
    pids = ledger.criu_pids(home)
    assert pids, "no CRIU works"
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # of two CRIUs the one that does not stop here may end by itself
            os.kill(pid, number)


def check_error(said: bytes) -> None:
    """It tells what happened, in four parts, and where the log is."""
    text = said.decode()
    pattern = r"waypoint: cannot dump the processes \(log: \S+\): .*CRIU.*\n"
    pattern += r"  next: try again; if it happens again, see 'waypoint doctor'.*\n"
    assert re.fullmatch(pattern, text), text
    assert "degraded" not in text


PLACES = [(name, step) for step in DUMPING for name, transaction in TRANSACTIONS.items() if transaction.dumps]


@pytest.mark.parametrize(("name", "step"), some(PLACES, lambda place: place))
def test_a_criu_that_dies_in_both_tries_is_an_error_and_the_session_goes_on_whole(
    w: Ground, name: str, step: Step
) -> None:
    transaction, client = TRANSACTIONS[name], w.client
    before = len(client.history.operations())
    argv = tuple(word for word in transaction.argv if word not in ("--tier", "live"))
    with w.pauses.armed(step) as armed, w.home.background(*argv) as command:
        for is_last in (False, True):
            assert armed.wait() == step
            hit(w.home, signal.SIGKILL)
            if not is_last:
                armed.arm(step)
            armed.go_on()
        said = command.communicate(timeout=PATIENCE_S)[1]
    assert (command.returncode, transaction.is_done(client)) == (125, False), said
    check_error(said)
    assert len(client.history.operations()) == before
    check_after(w, transaction, before, is_done=False)


@pytest.mark.parametrize("hung", [1, 2], ids=["one try", "both tries"])
def test_a_criu_that_hangs_is_given_up_within_seconds(w: Ground, hung: int) -> None:
    transaction = TRANSACTIONS["park"]
    before = len(w.client.history.operations())
    begun = time.monotonic()
    with w.pauses.armed(Step.FROZEN) as armed, w.home.background(*transaction.argv) as command:
        for number in range(hung):
            assert armed.wait() == Step.FROZEN
            hit(w.home, signal.SIGSTOP)
            if number + 1 < hung:
                armed.arm(Step.FROZEN)
            armed.go_on()
        said = command.communicate(timeout=PATIENCE_S)[1]
    assert time.monotonic() - begun < hung * HUNG_S + DEADLINE_S
    is_done = transaction.is_done(w.client)
    assert (command.returncode, is_done) == ((0, True) if hung == 1 else (125, False)), said
    if hung == 2:
        assert b"CRIU hung" in said
        check_error(said)
    check_after(w, transaction, before, is_done=is_done)
