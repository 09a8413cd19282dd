"""Groups that are ended, and used again under the same name."""

import os
import signal
from collections.abc import Iterator

import pytest

from waypoint.linux.tasks import cgroups
from waypoint.linux.tasks.clone import fork_into, leave_killed_group

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "cgroup2")]

LIVED = 7


@pytest.fixture
def group() -> Iterator[str]:
    path = f"{cgroups.find_hierarchies().unified}/waypoint-test-{os.getpid()}"
    cgroups.create(path)
    yield path
    cgroups.end(path)


def waiting_in(group: str) -> int:
    """The pid of a child in the group, which waits for ever."""
    pid = fork_into(group)
    if pid == 0:
        signal.pause()
        os._exit(LIVED)
    return pid


def outcome_in(group: str) -> int:
    """How a child ends that is born in the group and ends by itself: its exit status, or minus the signal's number."""
    pid = fork_into(group)
    if pid == 0:
        os._exit(LIVED)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_group_that_was_ended_takes_children_when_it_is_made_anew(group: str) -> None:
    for _round in range(3):
        pid = waiting_in(group)
        cgroups.end(group)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert not os.path.exists(group)
        cgroups.create(group)
        assert outcome_in(group) == LIVED


def test_ending_a_group_ends_and_removes_the_groups_below_frozen_ones_too(group: str) -> None:
    below = [f"{group}/a", f"{group}/a/b", f"{group}/c"]
    for path in below:
        cgroups.create(path)
    pids = [waiting_in(path) for path in below]
    cgroups.freeze(below[1])
    cgroups.end(group)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [-signal.SIGKILL] * 3
    assert not os.path.exists(group)


def test_an_empty_group_is_removed_and_one_that_is_gone_is_no_error(group: str) -> None:
    for _twice in range(2):
        cgroups.end(group)
        assert not os.path.exists(group)


def test_a_process_that_stands_in_a_killed_group_leaves_it_before_it_forks_into_others(group: str) -> None:
    fresh, killed = f"{group}/fresh", f"{group}/killed"
    for path in (fresh, killed):
        cgroups.create(path)
    cgroups.write(killed, "cgroup.kill", "1")
    for _again in range(2):  # the second one removes what the first one has left
        child = os.fork()
        if child == 0:
            cgroups.enter(killed)
            leave_killed_group()
            os._exit(outcome_in(fresh))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == LIVED
        assert len(cgroups.children(killed)) == 1


def test_a_process_in_any_other_group_stays_there(group: str) -> None:
    child = os.fork()
    if child == 0:
        cgroups.enter(group)
        leave_killed_group()
        os._exit(LIVED if cgroups.members(group) == [os.getpid()] and not cgroups.children(group) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == LIVED
