"""CRIU is killed or stopped while it dumps a live session. After one such failure another CRIU makes the dump. Two
failures are an error. The session never loses its processes.
"""

import contextlib
import json
import os
import re
import signal
import time

import pytest

from tests.answers import unusual
from tests.homes import Home
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.session.transactions import TRANSACTIONS, PausableHome, check_after
from tests.waiting import PATIENCE_S, wait_until
from waypoint.capture.layers.processes import HUNG_S
from waypoint.capture.steps import Step
from waypoint.linux.tasks import cgroups, procfs

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2"),
]


def hit(home: Home, number: signal.Signals) -> None:
    """Send the signal to every running CRIU of the home."""
    pids = ledger.criu_pids(home)
    assert pids, "no CRIU runs"
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a CRIU that did not stop at this step may have ended
            os.kill(pid, number)


def check_error(said: bytes) -> None:
    """Check that the error names CRIU's log, and no program: CRIU's code ran in no program."""
    pattern = r"waypoint: cannot dump the processes \(log: waypoint doctor --criu-log \S+\): CRIU[^;\n]*\n"
    pattern += r"  next: try again; if it happens again, see 'waypoint doctor'.*\n"
    assert re.fullmatch(pattern, said.decode()), said
    assert b"degraded" not in said


def age_s(pid: int) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - procfs.start_ticks(pid) / os.sysconf("SC_CLK_TCK")


def test_programs_that_end_when_criu_is_killed_are_reported(pauses: Pauses) -> None:
    """A killed CRIU may end the program that it dumps. Since this depends on timing, the test ends a program itself."""
    with pauses.open_home("ended") as home:
        home.must("shell", "-d", "main", env=pauses.env)
        home.must("exec", "--", "sleep 1234 & sleep 4321 &")
        sleeper = next(pid for pid in cgroups.members(str(ledger.group_of(home))) if ledger.name_of(pid) == "sleep")
        wait_until(lambda: age_s(sleeper) > 1.5, "the program is old enough to be named")
        with pauses.armed(Step.FROZEN) as armed, home.background("checkpoint", "k", "--json") as command:
            armed.wait()
            hit(home, signal.SIGKILL)
            os.kill(sleeper, signal.SIGKILL)
            armed.go_on()
            answer = json.loads(command.communicate(timeout=PATIENCE_S)[0])
        assert answer["tier"] == "live"
        (said,) = unusual(answer["degraded"])
        assert said["code"] == "programs-ended"
        assert re.fullmatch(r"sleep \(pid \d+\)", said["subject"])
        assert home.must("exec", "--", "jobs -r | wc -l").stdout.startswith("1\n")
        assert unusual(home.must("checkpoint", "again", "--json").json()["degraded"]) == []


@pytest.mark.soak(part="criu")
@pytest.mark.parametrize(
    ("name", "step"), [(name, step) for name, transaction in TRANSACTIONS.items() for step in transaction.dumping()]
)
def test_a_criu_killed_in_both_tries_is_an_error_and_harms_nothing(w: PausableHome, name: str, step: Step) -> None:
    transaction, client = TRANSACTIONS[name], w.client
    transaction.prepare(w.home)
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
    if transaction.after:  # the daemon tries until it succeeds
        assert command.returncode == 0, said
        check_after(w, transaction, before, is_done=True)
        return
    assert (command.returncode, transaction.is_done(client)) == (125, False), said
    check_error(said)
    assert len(client.history.operations()) == before
    check_after(w, transaction, before, is_done=False)


@pytest.mark.soak(part="criu")
@pytest.mark.parametrize("hung", [1, 2], ids=["one try", "both tries"])
def test_a_criu_that_hangs_is_killed_within_seconds(w: PausableHome, hung: int) -> None:
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
    assert time.monotonic() - begun < hung * HUNG_S + 5.0
    is_done = transaction.is_done(w.client)
    assert (command.returncode, is_done) == ((0, True) if hung == 1 else (125, False)), said
    if hung == 2:
        assert b"CRIU hung" in said
        check_error(said)
    check_after(w, transaction, before, is_done=is_done)
