"""Limits that the kernel counts per user: processes without a controller (RLIMIT_NPROC), and inotify instances."""

import shlex
from pathlib import Path

import pytest

from tests.linux.test_namespaces import instances_left
from tests.processes.stages import Stage, on_stage, type_line
from tests.waiting import PATIENCE_S, wait_until
from waypoint.launch.spec import Identity

pytestmark = [pytest.mark.privileged, pytest.mark.requires("cgroup2", "overlay", "userns", "timens")]

SOMEBODY = Identity(uid=71_234, gid=71_234, groups=[71_234])
FORKS = """
import os, signal
count, failed = 0, 0
try:
    while count < 40:
        if not os.fork():
            signal.pause()
        count += 1
except OSError as error:
    failed = error.errno
with open("/var/tmp/outcome.new", "w") as file:
    file.write(f"{count} {failed}")
os.rename("/var/tmp/outcome.new", "/var/tmp/outcome")
"""
EAGAIN = 11


@pytest.mark.parametrize(("processes", "least", "most", "failed"), [(20, 10, 19, EAGAIN), (None, 40, 40, 0)])
def test_the_processes_of_a_session_user_are_limited(
    tmp_path: Path, processes: int | None, least: int, most: int, failed: int
) -> None:
    def work(stage: Stage) -> str:
        session = stage.start(identity=SOMEBODY, processes=processes)
        outcome = Path(f"/proc/{session.pid}/root/var/tmp/outcome")
        program = f"exec(bytes.fromhex({FORKS.encode().hex()!r}))"
        type_line(session, shlex.join(["python3", "-c", program]))
        wait_until(outcome.exists, "the program has counted", PATIENCE_S)
        return outcome.read_text()

    count, error = map(int, on_stage(tmp_path, work).split())
    assert (least <= count <= most, error) == (True, failed)


OWNER = 2_000_080_000
TAKES_ALL = """
import ctypes, os, time
libc, count = ctypes.CDLL(None), 0
while libc.inotify_init1(0) >= 0:
    count += 1
with open("/var/tmp/outcome.new", "w") as file:
    file.write(str(count))
os.rename("/var/tmp/outcome.new", "/var/tmp/outcome")
time.sleep(1000)
"""


@pytest.mark.soak(part="timing")
@pytest.mark.parametrize("owner", [OWNER, 0])
def test_inotify_instances_of_a_session_with_its_own_owner_do_not_count_for_root(tmp_path: Path, owner: int) -> None:
    """The negative control is root as the owner, for whom they count."""

    def work(stage: Stage) -> tuple[int, int]:
        session = stage.start(owner=owner)
        outcome = Path(f"/proc/{session.pid}/root/var/tmp/outcome")
        program = f"exec(bytes.fromhex({TAKES_ALL.encode().hex()!r}))"
        type_line(session, shlex.join(["python3", "-c", program]))
        wait_until(outcome.exists, "the program has taken all instances", PATIENCE_S)
        return int(outcome.read_text()), instances_left()

    taken, left = on_stage(tmp_path, work)
    assert taken > 0
    assert (left > 0) == (owner == OWNER)
