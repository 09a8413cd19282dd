"""The watch over the pool's free space, with a fake pool, where the kernel does not report writes, so the watch polls.

tests/session/test_pool_growth.py tests it with a real pool, by writing.
"""

import queue

import pytest

from tests.waiting import DEADLINE_S
from waypoint.model.errors import Failed
from waypoint.service.background.growth import PoolWatch
from waypoint.upper.contract import Growth, GrowthOutcome, Outlook

pytestmark = pytest.mark.soak(part="disks")

NO_GROUP = "/sys/fs/cgroup/there is no such group"


class FakePool:
    """`answers`: results of `grow_if_needed`, the last one repeated. `looks`: the `ahead_bytes` of each call."""

    def __init__(self, *answers: Growth | Failed, short: bool = False) -> None:
        """`short`: whether the pool has less free space than its headroom."""
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
    """Watch the pool until it was asked `looks` times to grow; return the `ahead_bytes` of each time."""
    watch = PoolWatch(pool, NO_GROUP)  # type: ignore[arg-type]
    watch.start()
    try:
        return [pool.looks.get(timeout=DEADLINE_S) for _ in range(looks)]
    finally:
        watch.stop()


def enough(free_bytes: int) -> Growth:
    return Growth(GrowthOutcome.ENOUGH, free_bytes)


def test_a_pool_of_fixed_size_is_polled_like_others() -> None:
    assert watched(FakePool(Growth(GrowthOutcome.FIXED, 1 << 30)), 3) == [0, 0, 0]


def test_the_pool_grows_ahead_by_as_much_as_was_just_written() -> None:
    looks = FakePool(
        Growth(GrowthOutcome.ENOUGH, 100, size_bytes=200),
        Growth(GrowthOutcome.ENOUGH, 70, size_bytes=200),
        Growth(GrowthOutcome.GROWN, 110, size_bytes=250),  # 10 bytes were written meanwhile
        Growth(GrowthOutcome.ENOUGH, 50, size_bytes=190),  # gc has shrunk the pool
        Growth(GrowthOutcome.ENOUGH, 90, size_bytes=190),
    )
    assert watched(looks, 5) == [0, 0, 30, 40, 40]


def test_a_pool_that_cannot_grow_is_logged_once_until_it_has_space_again(caplog: pytest.LogCaptureFixture) -> None:
    refused = Growth(GrowthOutcome.REFUSED, 0, said="the disk is full")
    watched(FakePool(refused, refused, Failed("grow", "the pool", "broken"), enough(1 << 30), refused), 5)
    assert [line for line in caplog.messages if "cannot grow" in line] == 2 * ["the pool cannot grow: the disk is full"]


def shortages(pool: FakePool, looks: int) -> int:
    """Return how often the watch reports that the pool runs short, while it asks the pool `looks` times."""
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
def test_a_short_pool_is_reported_whether_it_grows_or_not(outcome: GrowthOutcome) -> None:
    """A pool with enough free space may lie on a full disk."""
    growth = Growth(outcome, 1 << 40)
    assert shortages(FakePool(growth, short=True), 3) >= 2
    assert shortages(FakePool(growth), 3) == 0


def test_a_short_pool_is_not_reported_at_each_poll() -> None:
    assert shortages(FakePool(enough(0), short=True), 10) == 1


def fillings(pool: FakePool, looks: int) -> list[int | None]:
    """What the watch reports about a pool that fills up, while it asks the pool `looks` times."""
    said: list[int | None] = []
    watch = PoolWatch(pool, NO_GROUP, on_filling=said.append)  # type: ignore[arg-type]
    watch.start()
    try:
        for _ in range(looks):
            pool.looks.get(timeout=DEADLINE_S)
    finally:
        watch.stop()
    return said


@pytest.mark.parametrize(("left", "written", "said"), [(90, 20, [90]), (90, 10, []), (40, 20, []), (250, 100, [None])])
def test_a_pool_that_is_filled_fast_is_reported(left: int, written: int, said: list[int | None]) -> None:
    pool = FakePool(enough((1 << 40) + written), enough(1 << 40))
    pool.outlook = lambda: Outlook(free_bytes=left, headroom_bytes=100)  # type: ignore[method-assign]
    assert list(dict.fromkeys(fillings(pool, 3))) == said


def test_an_error_is_not_reported_as_a_short_pool() -> None:
    assert shortages(FakePool(Failed("grow", "the pool", "broken"), enough(1 << 30)), 2) == 0
