"""A folder that is removed while a checkpoint is under way, after CRIU was told which folders have no name."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import Home
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.waiting import PATIENCE_S, wait_until
from waypoint.capture.steps import Step
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]


@pytest.fixture
def home(pauses: Pauses) -> Iterator[Home]:
    with pauses.open_home("meanwhile") as made:
        yield made


@pytest.mark.soak(part="faults")
def test_a_folder_of_the_base_that_is_removed_before_the_freeze_is_brought_back(
    home: Home, pauses: Pauses, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    session = Client(home.path).start("w")
    for name in ("first", "second"):
        session.exec(f"kept=yes; cd {tmp_path}/{name}; sleep 1000 &")
    session.exec(f"rmdir {tmp_path}/first")  # known when CRIU starts; the other is not
    argv = home.argv("checkpoint", "point", "-b", "w", "--tier", "live")
    with pauses.armed(Step.PREPARED) as armed:
        command = subprocess.Popen(argv, env=home.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert armed.wait() == Step.PREPARED
        wait_until(lambda: bool(ledger.dumping_pids(home)), "CRIU has started")
        assert session.run("rmdir", f"{tmp_path}/second").exit == 0
        armed.go_on()
        _, said = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, said) == (0, b"")
    (fork,) = Client(home.path).fork("point", "f")
    look = "echo $kept; for pid in $$ $(jobs -p); do readlink /proc/$pid/cwd; done"
    kept, *places = fork.exec(look).output.decode().splitlines()
    assert kept == "yes"
    assert [place.rpartition("/")[2] for place in places] == [
        f"{name} (deleted)" for name in ("second", "first", "second")
    ]
    assert fork.run("ls", "-A", str(tmp_path)).stdout == session.run("ls", "-A", str(tmp_path)).stdout
    ledger.check(home)
