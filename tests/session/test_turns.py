"""Turns are locks of names. A task may take its own turns again, and share them with work that it runs."""

import asyncio
import contextlib

import pytest

from tests.waiting import PATIENCE_S
from waypoint.session.turns import Turns


async def settle() -> None:
    """Let every task run until it waits."""
    for _turn in range(10):
        await asyncio.sleep(0)


async def take(turns: Turns, *names: str) -> None:
    async with turns.take(*names):
        pass


async def test_a_task_takes_its_own_turn_again_and_keeps_it_to_the_end() -> None:
    turns = Turns()
    async with turns.take("a", "b"):
        async with turns.take("b"), turns.take("a", "b"):
            pass
        other = asyncio.create_task(take(turns, "b"))
        await settle()
        assert not other.done()
    await asyncio.wait_for(other, PATIENCE_S)


async def test_a_task_started_by_the_holder_waits_for_its_turn() -> None:
    turns = Turns()
    async with turns.take("a"):
        child = asyncio.create_task(take(turns, "a"))
        await settle()
        assert not child.done()
    await asyncio.wait_for(child, PATIENCE_S)


async def test_a_holder_may_not_take_further_turns() -> None:
    turns = Turns()
    async with turns.take("a"):
        with pytest.raises(RuntimeError, match="takes that of"):
            await take(turns, "a", "b")
    await take(turns, "a", "b")


async def test_a_task_that_is_cancelled_while_it_waits_keeps_no_turn() -> None:
    turns = Turns()
    async with turns.take("b"):
        waiting = asyncio.create_task(take(turns, "a", "b"))
        await settle()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(asyncio.create_task(take(turns, "a")), PATIENCE_S)
    await asyncio.wait_for(asyncio.create_task(take(turns, "a", "b")), PATIENCE_S)


async def test_a_holder_shares_its_turns_with_concurrent_work() -> None:
    turns = Turns()
    begun: list[str] = []
    go_on = asyncio.Event()

    async def work(name: str) -> str:
        async with turns.take(name):
            begun.append(name)
            if name == "b":
                raise ValueError(name)
            await go_on.wait()
            return name.upper()

    async def lend(*names: str) -> list[str]:
        async with turns.take("a", "b", "c"):
            return await turns.share({name: work(name) for name in names})

    lending = asyncio.create_task(lend("a", "c"))
    other = asyncio.create_task(take(turns, "a"))
    await settle()
    assert begun == ["a", "c"]
    assert not other.done()
    go_on.set()
    assert await asyncio.wait_for(lending, PATIENCE_S) == ["A", "C"]
    await asyncio.wait_for(other, PATIENCE_S)
    go_on.clear()
    failing = asyncio.create_task(lend("a", "b", "c"))
    await settle()
    assert not failing.done()  # begun work is not cancelled
    go_on.set()
    with pytest.raises(ValueError, match="b"):
        await asyncio.wait_for(failing, PATIENCE_S)
    await asyncio.wait_for(asyncio.create_task(take(turns, "a", "b", "c")), PATIENCE_S)


async def test_turns_taken_in_different_orders_do_not_deadlock() -> None:
    turns = Turns()

    async def hold(*names: str) -> None:
        async with turns.take(*names):
            await settle()

    wishes = [("a", "b"), ("b", "a"), ("c", "a"), ("b", "c"), ("a", "b", "c")]
    await asyncio.wait_for(asyncio.gather(*(hold(*names) for names in wishes)), PATIENCE_S)
