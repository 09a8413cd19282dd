"""The watch over the pool where the kernel, or the pool, does not do its part. How it does its part: by writing, in
tests/session/test_pool_growth.py.
"""

import queue

import pytest

from tests.waiting import DEADLINE_S
from waypoint.model.errors import Failed
from waypoint.service.background import growth
from waypoint.service.background.growth import PoolWatch
from waypoint.upper.contract import Growth, GrowthOutcome, Outlook

NO_GROUP = "/sys/fs/cgroup/there is no such group"


class FakePool:
    """Answers as the test says, the last answer again and again. `looks`: one item for each time it was asked."""

    def __init__(self, *answers: Growth | Failed, short: bool = False) -> None:
        """`short`: whether the pool runs short."""
        self._answers = list(answers)
        self._outlook = Outlook(free_bytes=0, headroom_bytes=int(short))
        self.looks: queue.Queue[int] = queue.Queue()

    def outlook(self) -> Outlook:
        return self._outlook

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


def test_a_pool_that_has_no_size_of_its_own_is_looked_at_like_others() -> None:
    assert watched(FakePool(Growth(GrowthOutcome.FIXED, 1 << 30)), 3) == [0, 0, 0]


def test_room_is_made_for_as_much_as_was_written_just_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "RECENT_S", 1000.0)
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


def told(pool: FakePool, looks: int) -> int:
    """How often it is told, in so many looks, that the pool runs short."""
    said: queue.Queue[None] = queue.Queue()
    watch = PoolWatch(pool, NO_GROUP, lambda: said.put(None))  # type: ignore[arg-type]
    watch.start()
    try:
        for _ in range(looks):
            pool.looks.get(timeout=DEADLINE_S)
    finally:
        watch.stop()
    return said.qsize()


@pytest.mark.parametrize("outcome", GrowthOutcome)
def test_it_is_told_while_the_pool_runs_short_and_not_otherwise(outcome: GrowthOutcome) -> None:
    """A pool that has its headroom may lie on a disk that is full; one that cannot grow is as short as any other."""
    found = Growth(outcome, 1 << 40)
    assert told(FakePool(found, short=True), 3) >= 2
    assert told(FakePool(found), 3) == 0


def test_it_is_not_told_at_each_of_many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "LONGEST_S", 1000.0)
    assert told(FakePool(enough(0), short=True), 10) == 1


def test_an_error_is_no_sign_that_the_disk_runs_short() -> None:
    assert told(FakePool(Failed("grow", "the pool", "broken"), enough(1 << 30)), 2) == 0
