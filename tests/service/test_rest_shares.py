"""The shares of the sessions in what is left of a pool, with a fake pool."""

import asyncio
import contextlib
from typing import Any

from tests.records.test_names_store import row_of
from waypoint.service.background.rest_shares import RestShares
from waypoint.upper.contract import UNLIMITED, more_space


class FakePool:
    """`written`, `limits`: in bytes, by tree."""

    def __init__(self) -> None:
        self.written: dict[str, int] = {}
        self.limits: dict[str, int] = {}

    def written_bytes(self, name: str) -> int | None:
        return self.written.get(name, 0)

    def limit(self, name: str, most_bytes: int) -> str:
        self.limits[name] = most_bytes
        if most_bytes == UNLIMITED:
            del self.limits[name]
        return ""


def test_a_session_gets_one_share_however_often_other_sessions_start() -> None:
    pool: Any = FakePool()
    rows = [row_of("one"), row_of("two")]
    shares = RestShares(pool, lambda: rows)

    async def run() -> None:
        shares.share(1000)
        await asyncio.get_running_loop().shutdown_default_executor()
        pool.written[rows[0].tree] = 500

    async def start_another() -> None:
        rows.append(row_of("three"))
        shares.apply()
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(run())
    asyncio.run(start_another())
    assert pool.limits == {row.tree: 500 for row in rows}


def test_limits_that_are_removed_during_a_capture_do_not_come_back() -> None:
    pool: Any = FakePool()
    pool.limit("tree", 500)
    with contextlib.ExitStack() as held:
        held.enter_context(more_space(pool, "tree", None, 100))
        assert pool.limits == {"tree": 600}
        pool.limit("tree", UNLIMITED)
    assert pool.limits == {}
    with more_space(pool, "tree", 500, 100):
        pass
    assert pool.limits == {"tree": 500}
