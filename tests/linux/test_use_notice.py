"""The kernel reports when a cgroup uses the processor, and only then."""

import select
import subprocess
from collections.abc import Iterator

import pytest

from waypoint.linux.tasks import cgroups
from waypoint.linux.tasks.use_notice import UseNotice

pytestmark = [pytest.mark.privileged, pytest.mark.requires("cgroup2", "perf-cgroup")]

USEC = 5000
SPIN = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"


@pytest.fixture
def notice(group: str) -> Iterator[UseNotice]:
    """A UseNotice of `group`, which has a child group."""
    cgroups.create(f"{group}/inner")
    notice = UseNotice(group, USEC)
    yield notice
    notice.close()


def run_in(group: str, command: str) -> None:
    subprocess.run(["sh", "-c", f"echo 0 > {group}/inner/cgroup.procs; {command}"], check=True)


def has_reported(notice: UseNotice, timeout_s: float = 0.2) -> bool:
    poll = select.poll()
    for fd in notice.fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


def test_processor_use_in_a_group_below_is_reported(notice: UseNotice, group: str) -> None:
    notice.arm()
    assert not has_reported(notice)
    run_in(group, SPIN)
    assert has_reported(notice, 0)
    run_in(group, SPIN)
    assert has_reported(notice, 0)


def test_processor_use_outside_the_group_is_not_reported(notice: UseNotice) -> None:
    notice.arm()
    subprocess.run(["sh", "-c", SPIN], check=True)
    assert not has_reported(notice, 0)


def test_short_lived_processes_add_up(notice: UseNotice, group: str) -> None:
    notice.arm()
    before = cgroups.cpu_usec(group)
    while not has_reported(notice, 0):  # the kernel does not count all of a short process's time
        run_in(group, ":")
        assert cgroups.cpu_usec(group) - before < 20 * USEC * len(notice.fds)


def test_a_disarmed_notice_reports_nothing(notice: UseNotice, group: str) -> None:
    run_in(group, SPIN)
    assert not has_reported(notice, 0)
    notice.arm()
    notice.disarm()
    run_in(group, SPIN)
    assert not has_reported(notice, 0)


def test_a_missing_group_raises_file_not_found_error(group: str) -> None:
    with pytest.raises(FileNotFoundError):
        UseNotice(f"{group}/nothing", USEC)
