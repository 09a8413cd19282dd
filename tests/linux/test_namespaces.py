"""Resources that the kernel counts for each user are charged to the owner of a user namespace, too."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from waypoint.linux.tasks import namespaces

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.requires("root", "userns"),
    pytest.mark.soak(part="timing"),
]

FIRST, OWNER, OTHER = 2_000_000_000, 2_000_080_000, 2_000_080_001


def take_instances() -> int:
    """Take inotify instances until the kernel refuses one; return how many."""
    libc, count = ctypes.CDLL(None), 0
    while libc.inotify_init1(0) >= 0:
        count += 1
    return count


def instances_left() -> int:
    """Return how many inotify instances root could take now."""
    return in_child(take_instances)


def in_child(work: object) -> int:
    answer, said = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(said, str(work()).encode())  # type: ignore[operator]
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(said)
    with open(answer, "rb") as file:
        return int(file.read())


@contextmanager
def hoarder(owner: int) -> Iterator[int]:
    """Run a process that is root in a user namespace of `owner` and takes inotify instances; yield how many it got."""
    (asked, ask), (answered, answer), (told, tell), (ended, end) = (os.pipe() for _ in range(4))
    child = os.fork()
    if child == 0:
        try:
            for fd in (answer, end):
                os.close(fd)
            namespaces.unshare_user(owner)
            os.write(ask, b".")
            os.read(answered, 1)
            os.setgid(0)
            os.setuid(0)
            os.write(tell, str(take_instances()).encode())
            os.read(ended, 1)
        finally:
            os._exit(0)
    for fd in (ask, answered, tell, ended):
        os.close(fd)
    os.read(asked, 1)
    namespaces.map_ids(child, f"0 {FIRST} 65536\n")
    os.write(answer, b".")
    count = int(os.read(told, 32) or b"-1")
    try:
        yield count
    finally:
        for fd in (asked, answer, told, end):
            os.close(fd)
        os.waitpid(child, 0)


def test_inotify_instances_of_a_namespace_are_charged_to_its_owner_only() -> None:
    before = instances_left()
    with hoarder(OWNER) as count:
        assert count > 0
        assert instances_left() == before > 0
        with hoarder(OTHER) as others:
            assert others == count


def test_a_namespace_of_root_takes_the_inotify_instances_of_root() -> None:
    """The negative control of the test above."""
    with hoarder(0) as count:
        assert count > 0
        assert instances_left() == 0


def test_the_owner_has_all_capabilities_in_the_namespace() -> None:
    def effective() -> int:
        namespaces.unshare_user(OWNER)
        with open("/proc/self/status") as status:
            return next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))

    with open("/proc/sys/kernel/cap_last_cap") as last:
        assert in_child(effective) == (1 << (int(last.read()) + 1)) - 1
