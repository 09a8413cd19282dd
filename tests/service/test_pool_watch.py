"""The watch over the pool where the kernel, or the pool, does not do its part. How it does its part: by writing, in
tests/session/test_pool_growth.py.
"""

import queue

import pytest

from tests.waiting import DEADLINE_S
from waypoint.model.errors import Failed
from waypoint.service.background.growth import PoolWatch
from waypoint.upper.contract import Growth, GrowthOutcome

NO_GROUP = "/sys/fs/cgroup/there is no such group"


class FakePool:
    """Answers as the test says, the last answer again and again. `looks`: one item for each time it was asked."""

    def __init__(self, *answers: Growth | Failed) -> None:
        self._answers = list(answers)
        self.looks: queue.Queue[int] = queue.Queue()

    def grow_if_needed(self, ahead_bytes: int = 0) -> Growth:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self.looks.put(ahead_bytes)
        if isinstance(answer, Failed):
            raise answer
        return answer


def watched(pool: FakePool, looks: int) -> list[int]:
    """Watch the pool until it was looked at so often; return the `ahead_bytes` of each look."""
    watch = PoolWatch(pool, NO_GROUP)  # type: ignore[arg-type]
    watch.start()
    try:
        return [pool.looks.get(timeout=DEADLINE_S) for _ in range(looks)]
    finally:
        watch.stop()


def enough(free_bytes: int) -> Growth:
    return Growth(GrowthOutcome.ENOUGH, free_bytes)


def test_where_the_kernel_does_not_tell_of_use_the_looking_never_ends() -> None:
    assert len(watched(FakePool(enough(1 << 30)), 5)) == 5


def test_a_pool_that_has_no_size_of_its_own_is_looked_at_once() -> None:
    pool = FakePool(Growth(GrowthOutcome.FIXED, 1 << 30))
    assert watched(pool, 1) == [0]
    assert pool.looks.empty()


def test_room_is_made_for_as_much_as_was_written_just_before() -> None:
    looks = FakePool(
        Growth(GrowthOutcome.ENOUGH, 100, size_bytes=200),
        Growth(GrowthOutcome.ENOUGH, 70, size_bytes=200),
        Growth(GrowthOutcome.GROWN, 110, size_bytes=250),  # 10 were written meanwhile
        Growth(GrowthOutcome.ENOUGH, 50, size_bytes=190),  # it was shrunk by gc
        Growth(GrowthOutcome.ENOUGH, 90, size_bytes=190),
    )
    assert watched(looks, 5) == [0, 0, 30, 40, 40]


def test_a_pool_that_cannot_grow_is_said_once_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    refused = Growth(GrowthOutcome.REFUSED, 0, said="the disk is full")
    watched(FakePool(refused, refused, Failed("grow", "the pool", "broken"), enough(1 << 30), refused), 5)
    assert [line for line in caplog.messages if "cannot grow" in line] == 2 * ["the pool cannot grow: the disk is full"]


def test_it_is_told_while_the_pool_cannot_grow_and_not_otherwise() -> None:
    told: queue.Queue[int] = queue.Queue()
    pool = FakePool(enough(1 << 30), Growth(GrowthOutcome.REFUSED, 0, said="the disk is full"))
    watch = PoolWatch(pool, NO_GROUP, lambda: told.put(pool.looks.qsize()))  # type: ignore[arg-type]
    watch.start()
    try:
        assert told.get(timeout=DEADLINE_S) == 2
    finally:
        watch.stop()


def test_an_error_is_no_sign_that_the_disk_runs_short() -> None:
    told: queue.Queue[int] = queue.Queue()
    pool = FakePool(Failed("grow", "the pool", "broken"), enough(1 << 30))
    watch = PoolWatch(pool, NO_GROUP, lambda: told.put(0))  # type: ignore[arg-type]
    watch.start()
    try:
        assert [pool.looks.get(timeout=DEADLINE_S) for _ in range(2)] == [0, 0]
    finally:
        watch.stop()
    assert told.empty()
