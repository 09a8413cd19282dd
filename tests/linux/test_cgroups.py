"""Ending cgroups, and using their names again."""

import os
import signal
from pathlib import Path

import pytest

from waypoint.linux.tasks import cgroups
from waypoint.linux.tasks.clone import fork_into, leave_killed_group, wait_entered

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "cgroup2")]

LIVED = 7


def waiting_in(group: str) -> int:
    """Start a child in the group that waits for ever, and return its pid."""
    pid = fork_into(group)
    if pid == 0:
        signal.pause()
        os._exit(LIVED)
    return pid


def outcome_in(group: str) -> int:
    """Start a child in the group; the child exits at once. Return its exit status, or minus its signal."""
    pid = fork_into(group)
    if pid == 0:
        os._exit(LIVED)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_an_ended_group_can_be_made_again_and_takes_processes(group: str) -> None:
    for _round in range(3):
        pid = waiting_in(group)
        cgroups.end(group)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert not os.path.exists(group)
        cgroups.create(group)
        assert outcome_in(group) == LIVED


def test_ending_a_group_ends_all_groups_below_it_even_frozen_ones(group: str) -> None:
    below = [f"{group}/a", f"{group}/a/b", f"{group}/c"]
    for path in below:
        cgroups.create(path)
    pids = [waiting_in(path) for path in below]
    cgroups.freeze(below[1])
    cgroups.end(group)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [-signal.SIGKILL] * 3
    assert not os.path.exists(group)


def test_ending_an_empty_or_missing_group_works(group: str) -> None:
    for _twice in range(2):
        cgroups.end(group)
        assert not os.path.exists(group)


def test_a_process_in_a_killed_group_moves_to_a_new_group_so_that_its_forks_live(group: str) -> None:
    fresh, killed = f"{group}/fresh", f"{group}/killed"
    for path in (fresh, killed):
        cgroups.create(path)
    cgroups.write(killed, "cgroup.kill", "1")
    for _again in range(2):  # the second child removes the group that the first one made
        child = os.fork()
        if child == 0:
            cgroups.enter(killed)
            leave_killed_group()
            os._exit(outcome_in(fresh))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == LIVED
        assert len(cgroups.children(killed)) == 1


def test_a_process_in_a_group_that_was_never_killed_stays_there(group: str) -> None:
    child = os.fork()
    if child == 0:
        cgroups.enter(group)
        leave_killed_group()
        os._exit(LIVED if cgroups.members(group) == [os.getpid()] and not cgroups.children(group) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == LIVED


DEEP, LONG = 30, "n" * 200


def test_nested_groups_whose_path_is_too_long_are_ended_and_removed(group: str) -> None:
    pids = [in_nested(group, frozen=frozen) for frozen in (False, True)]
    assert sorted(cgroups.members(group)) == sorted(pids)
    cgroups.end(group)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [-signal.SIGKILL] * 2
    assert not os.path.exists(group)


def in_nested(group: str, *, frozen: bool) -> int:
    """Start a child that waits in a new group, DEEP groups below `group`, and return its pid."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.chdir(group)
        for number in range(DEEP):
            name = f"{LONG}{frozen and not number}"
            os.mkdir(name)
            os.chdir(name)
        with open("cgroup.procs", "w") as procs:
            procs.write("0")
        os.write(told, b".")
        if frozen:
            with open("cgroup.freeze", "w") as freeze:
                freeze.write("1")
        signal.pause()
        os._exit(LIVED)
    os.close(told)
    assert os.read(ready, 1)
    os.close(ready)
    return pid


def test_a_confined_group_limits_depth_and_number_of_groups(group: str) -> None:
    cgroups.confine(group, depth=2, groups=3)
    cgroups.create(f"{group}/a/b")
    for path in (f"{group}/a/b/c", f"{group}/x/y"):
        with pytest.raises(BlockingIOError):
            cgroups.create(path)


@pytest.mark.requires("controller-pids")
def test_a_forked_child_is_in_the_version_1_groups_before_it_continues(group: str) -> None:
    legacy = cgroups.find_hierarchies().legacy
    if "pids" not in legacy:  # the controller is in cgroup2, so the group has no version 1 twins
        assert cgroups.twins(group) == []
        return
    twin = f"{legacy['pids']}/{os.path.basename(group)}"
    cgroups.create(twin)
    assert cgroups.twins(group) == [twin]
    pid = fork_into(group)
    if pid == 0:
        wait_entered()
        os._exit(LIVED if cgroups.own_group(legacy["pids"], "pids") == twin else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == LIVED
    cgroups.end(group)
    assert not os.path.exists(twin)


def test_the_least_limit_of_a_group_and_those_above_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On files like those of cgroup2: a gate machine may lack the controllers."""
    group = tmp_path / "home" / "session"
    group.mkdir(parents=True)
    stat = "anon 5000\ninactive_file 300\nactive_file 60\nslab_reclaimable 7\n"
    for folder, most, used in ((tmp_path, "max", 90), (group.parent, "1000", 900), (group, "5000", 800)):
        for name, text in (("memory.max", most), ("memory.current", str(used)), ("memory.stat", stat)):
            (folder / name).write_text(text)
    (group / "pids.max").write_text("9")
    (group / "pids.current").write_text("3")
    monkeypatch.setattr(cgroups, "find_hierarchies", lambda: cgroups.Hierarchies(str(tmp_path), {}))
    assert cgroups.free_memory_bytes(str(group)) == 1000 - 900 + 367
    assert cgroups.free_processes(str(group)) == 9 - 3
    assert cgroups.free_processes(str(group.parent)) is None
