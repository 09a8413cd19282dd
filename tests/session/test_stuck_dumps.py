"""Checkpoints still work after a helper process of CRIU did not end with its daemon or its dump."""

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.homes import Home
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.waiting import PATIENCE_S
from waypoint.capture.steps import Step
from waypoint.client import Client, Session

pytestmark = [
    pytest.mark.soak(part="criu"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2"),
]

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def home(pauses: Pauses) -> Iterator[Home]:
    with pauses.open_home("stuck") as made:
        yield made


@pytest.fixture
def session(home: Home) -> Iterator[Session]:
    live = Client(home.path).start(f"w{next(_NUMBERS)}")
    live.exec("kept=yes; sleep 1000 &")
    yield live
    live.stop(discard=True)


@contextlib.contextmanager
def stopped_dump(home: Home, pauses: Pauses, session: Session) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Begin a checkpoint that stops when CRIU has written the images; yield its command and the pid of its CRIU. The
    checkpoint continues after the block, unless the daemon is dead.
    """
    argv = home.argv("checkpoint", f"{session.branch}-stopped", "-b", session.branch, "--tier", "live")
    with pauses.armed(Step.DUMPED) as armed:
        command = subprocess.Popen(argv, env=home.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            assert armed.wait() == Step.DUMPED
            (criu,) = ledger.dumping_pids(home)
            yield command, criu
            with contextlib.suppress(OSError):
                armed.go_on()
            command.wait(PATIENCE_S)
        finally:
            command.kill()
            command.communicate()


def check_unharmed_afterwards(home: Home, session: Session) -> None:
    """Check that the session is unharmed, and can be captured and forked several times."""
    assert session.exec("echo $kept; jobs -r | wc -l").output == b"yes\n1\n"
    for number in range(2):
        name = f"{session.branch}-{number}"
        session.checkpoint(name, tier="live")
        (fork,) = Client(home.path).fork(name, f"fork-{name}")
        assert fork.exec("echo $kept; jobs -r | wc -l").output == b"yes\n1\n"
        fork.stop(discard=True)
        Client(home.path).history.remove(name)
    ledger.check(home)


@pytest.mark.parametrize("fate", ["has ended", "was killed", "was killed with its daemon"])
def test_a_helper_that_outlives_its_criu_is_ended(home: Home, pauses: Pauses, session: Session, fate: str) -> None:
    with subprocess.Popen(["sleep", "1000"]) as helper, contextlib.ExitStack() as ending:
        ending.callback(helper.kill)
        with stopped_dump(home, pauses, session) as (command, criu):
            (group,) = ledger.group_of(home).glob("dumps/*/")
            (group / "cgroup.procs").write_text(str(helper.pid))
            if fate != "has ended":
                os.kill(criu, signal.SIGKILL)
            if "daemon" in fate:
                os.kill(Client(home.path).status().pid, signal.SIGKILL)
        assert (command.returncode == 0) == ("daemon" not in fate), "another CRIU makes the dump"
        assert helper.wait(PATIENCE_S) == -signal.SIGKILL
    check_unharmed_afterwards(home, session)
