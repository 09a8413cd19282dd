"""What is held apart from its session's cgroup gets back there, or ends: nothing stays outside."""

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from tests.waiting import wait_until
from waypoint.linux.tasks import cgroups
from waypoint.model.errors import CannotCapture
from waypoint.model.ids import random_hex
from waypoint.processes.left_out import LeftOut, set_apart, take_back
from waypoint.processes.respawn.manifest import Program

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "cgroup2")]


@pytest.fixture
def group() -> Iterator[str]:
    made = f"{cgroups.find_hierarchies().unified}/waypoint/test-{random_hex(8)}"
    cgroups.create(made)
    yield made
    cgroups.end(f"{made}.apart")
    cgroups.end(made)


@pytest.fixture
def member(group: str) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "1000"]) as started:
        cgroups.write(group, "cgroup.procs", str(started.pid))
        with contextlib.ExitStack() as ending:
            ending.callback(started.kill)
            yield started


def left_out(pid: int) -> list[LeftOut]:
    program = Program(
        role="job", group=pid, argv=[], folder="", environ=[], streams=[], ports=[], started=0, below=0, pids=[pid]
    )
    return [LeftOut(program, "", {}, "")]


def test_it_is_frozen_apart_and_comes_back(group: str, member: "subprocess.Popen[bytes]") -> None:
    set_apart(group, left_out(member.pid))
    assert (cgroups.members(group), cgroups.members(f"{group}.apart")) == ([], [member.pid])
    take_back(group)
    assert (cgroups.members(group), cgroups.members(f"{group}.apart")) == ([member.pid], [])


def test_what_the_group_does_not_take_again_ends(group: str, member: "subprocess.Popen[bytes]") -> None:
    """Nor does it keep a daemon from starting, which looks for what the last one has left so."""
    set_apart(group, left_out(member.pid))
    cgroups.remove(group)
    take_back(group)
    wait_until(lambda: member.poll() == -9, "it has ended")
    assert cgroups.members(f"{group}.apart") == []


def test_nothing_is_set_apart_of_a_session_with_groups_of_its_own(
    group: str, member: "subprocess.Popen[bytes]"
) -> None:
    cgroups.create(f"{group}/own")
    cgroups.write(f"{group}/own", "cgroup.procs", str(member.pid))
    with pytest.raises(CannotCapture, match="groups in its own"):
        set_apart(group, left_out(member.pid))
    take_back(group)
    assert cgroups.members(f"{group}/own") == [member.pid]
