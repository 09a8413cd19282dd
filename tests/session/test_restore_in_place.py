"""A restore in place answers before CRIU dumps the replaced session, if CRIU will certainly dump it."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import Home
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.waiting import PATIENCE_S
from waypoint.capture.steps import Step
from waypoint.client import Client, Session

RESTRICTING = Path(__file__).with_name("restricting.py")

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2", "own-criu")]


@pytest.fixture(scope="module")
def pausable(pauses: Pauses) -> Iterator[Home]:
    with pauses.open_home("in-place") as home:
        yield home


@pytest.fixture
def w(pausable: Home) -> Iterator[Session]:
    """A session with a checkpoint `base`, changed since."""
    session = Client(pausable.path).start("w")
    session.exec("word=old; sleep 1000 &")
    session.checkpoint("base")
    session.exec("word=new; echo new > /srv/word")
    yield session
    pausable.must("stop", "--all", "--discard")
    pausable.must("rm", "base", "w")


def restoring(home: Home) -> subprocess.Popen[bytes]:
    return home.background("restore", "base", "-b", "w")


def test_a_request_on_the_branch_waits_for_the_dump_of_the_replaced_session(
    pausable: Home, pauses: Pauses, w: Session
) -> None:
    with pauses.armed(Step.DUMPED) as armed, restoring(pausable) as restore:
        assert armed.wait() == Step.DUMPED
        assert restore.wait(PATIENCE_S) == 0
        assert w.exec("echo $word; cat /srv/word").output.decode().startswith("old\n"), "the new session is in use"
        with pausable.background("undo", "-b", "w") as undo:
            with pytest.raises(subprocess.TimeoutExpired):
                undo.wait(0.2)
            armed.go_on()
            assert undo.wait(PATIENCE_S) == 0
    assert w.exec("echo $word; jobs -r | wc -l; cat /srv/word").output == b"new\n1\nnew\n"
    ledger.check(pausable)


def test_a_session_that_criu_may_refuse_is_dumped_before_the_answer(pausable: Home, pauses: Pauses, w: Session) -> None:
    w.exec("exec 9<>/srv/gone; echo kept >&9; rm /srv/gone")
    with pauses.armed(Step.DUMPED) as armed, restoring(pausable) as restore:
        assert armed.wait() == Step.DUMPED
        assert restore.poll() is None
        armed.go_on()
        assert restore.wait(PATIENCE_S) == 0
    pausable.must("undo", "-b", "w")
    assert w.exec("cat /proc/self/fd/9; echo $word").output == b"kept\nnew\n"
    ledger.check(pausable)


def test_processes_that_criu_refuses_after_the_answer_are_reported_as_lost(pausable: Home, w: Session) -> None:
    """Nothing but CRIU sees the sealed memory of a program that CRIU has dumped before."""
    w.run("sh", "-c", "cat > /srv/restricting.py", stdin=RESTRICTING.read_bytes())
    w.exec("python3 -c 'import time; time.sleep(1000)' & :")
    w.checkpoint("with-python")
    w.exec("python3 /srv/restricting.py mseal & until [ -d /srv/on ]; do sleep 0.02; done")
    pausable.must("restore", "base", "-b", "w")
    ledger.check(pausable)
    said = pausable.must("undo", "-b", "w").stderr
    assert re.fullmatch(
        r"will be lost: w: its processes \(capture \w+ has only their command lines\)\n"
        r"degraded: w: without its processes: python3 \(pid \d+\) has sealed memory \(mseal\), .*\n",
        said,
    ), said
    assert w.run("cat", "/srv/word").stdout == b"new\n"


def test_a_fork_of_a_session_that_criu_refuses_after_the_answer_has_its_files(pausable: Home, w: Session) -> None:
    w.run("sh", "-c", "cat > /srv/restricting.py", stdin=RESTRICTING.read_bytes())
    w.exec("python3 -c 'import time; time.sleep(1000)' & :")
    w.checkpoint("with-python", force=True)
    w.exec("python3 /srv/restricting.py mseal & until [ -d /srv/on ]; do sleep 0.02; done")
    replaced = w.restore("base").replaced
    assert replaced is not None
    (copy,) = Client(pausable.path).fork(replaced["capture"], "w-copy")
    assert copy.run("cat", "/srv/word").stdout == b"new\n"
    copy.stop(discard=True)
    ledger.check(pausable)


def test_a_limit_that_leaves_criu_no_room_is_kept(pausable: Home, w: Session) -> None:
    """CRIU dumps such a process with another limit, so the capture must have noted the session's."""
    w.exec("ulimit -S -n 16")
    pausable.must("restore", "base", "-b", "w")
    pausable.must("undo", "-b", "w")
    assert w.exec("ulimit -Sn; echo $word").output == b"16\nnew\n"
