"""Groups that are ended, and used again under the same name."""

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.linux.test_loop import wait_detached
from tests.waiting import DEADLINE_S
from waypoint.linux.calls import programs
from waypoint.linux.storage import loop, mounts
from waypoint.linux.tasks import cgroups, namespaces
from waypoint.linux.tasks.clone import fork_into, leave_killed_group, wait_entered

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "cgroup2")]

LIVED = 7
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878  # linux/fs.h


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


@pytest.fixture
def disks(corner: Path) -> Iterator[tuple[Path, str]]:
    """A file system that is mounted, and a device with another, whose file is on the first."""
    outer, inner = corner / "outer", corner / "outer/inner.image"
    outer.mkdir()
    with make_image(corner / "outer.image", 24) as file, loop.attach(file.fileno()) as device:
        mounts.mount(device.path, outer, "ext4")
    with make_image(inner, 16) as file:
        with loop.attach(file.fileno()) as device:
            yield outer, device.path
        wait_detached(file.fileno())
    mounts.umount(outer, mounts.MNT_DETACH)  # the kernel may have the file for a moment


def make_image(path: Path, mib: int) -> BinaryIO:
    path.touch()
    os.truncate(path, mib << 20)
    programs.run("mkfs.ext4", "-q", "-b", "4096", path)
    return path.open("r+b")


@contextlib.contextmanager
def standing_still(folder: Path) -> Iterator[None]:
    """Whoever writes to the file system, its loop device's thread, too, waits for the end of the `with`."""
    fd = os.open(folder, os.O_RDONLY)
    fcntl.ioctl(fd, FIFREEZE, 0)
    try:
        yield
    finally:
        fcntl.ioctl(fd, FITHAW, 0)
        os.close(fd)


def test_a_killed_process_that_unmounts_what_is_not_on_the_disk_yet_is_waited_for(
    group: str, disks: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outer, device = disks
    monkeypatch.setattr(cgroups, "EVENT_TIMEOUT_S", 0.5)
    ready, told = os.pipe()
    pid = fork_into(group)
    if pid == 0:
        namespaces.unshare(namespaces.CLONE_NEWNS)
        point = outer.parent / "point"
        point.mkdir()
        mounts.mount(device, point, "ext4")
        (point / "file").write_bytes(bytes(1 << 20))
        os.write(told, b".")
        signal.pause()
        os._exit(LIVED)
    assert os.read(ready, 1)
    with ThreadPoolExecutor(1) as threads:
        with standing_still(outer):
            ending = threads.submit(cgroups.end, group)
            with pytest.raises(TimeoutError, match=r"^$"):  # the future's own: it waits longer than for a living one
                ending.result(1.5 * cgroups.EVENT_TIMEOUT_S)
        ending.result(DEADLINE_S)
    assert not os.path.exists(group)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_a_process_that_lives_on_is_not_waited_for_as_long(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = waiting_in(group)
    with monkeypatch.context() as patch:
        patch.setattr(cgroups, "EVENT_TIMEOUT_S", 0.05)
        patch.setattr(cgroups, "_kill", lambda path: None)
        with pytest.raises(TimeoutError, match="populated 0"):
            cgroups.end(group)
    cgroups.end(group)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


DEEP, LONG = 30, "n" * 200


def test_groups_whose_paths_are_too_long_are_counted_ended_and_removed(group: str) -> None:
    """A session's root can make such groups, if it is the host's, and freeze what is in them."""
    pids = [in_nested(group, frozen=frozen) for frozen in (False, True)]
    assert sorted(cgroups.members(group)) == sorted(pids)
    cgroups.end(group)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [-signal.SIGKILL] * 2
    assert not os.path.exists(group)


def in_nested(group: str, *, frozen: bool) -> int:
    """The pid of a child that waits in a new group, DEEP groups below `group`."""
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


def test_a_confined_group_takes_so_many_groups(group: str) -> None:
    cgroups.confine(group, depth=2, groups=3)
    cgroups.create(f"{group}/a/b")
    for path in (f"{group}/a/b/c", f"{group}/x/y"):
        with pytest.raises(BlockingIOError):
            cgroups.create(path)


@pytest.mark.requires("controller-pids")
def test_a_child_is_in_the_twins_of_its_group_before_it_goes_on(group: str) -> None:
    legacy = cgroups.find_hierarchies().legacy
    if "pids" not in legacy:  # it is in cgroup2, and has no twins
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
