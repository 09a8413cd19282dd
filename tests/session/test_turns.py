"""Who has the turn of a name, and who waits for it."""

import asyncio
import contextlib

import pytest

from waypoint.session.turns import Turns


async def settle() -> None:
    """Let every task run until it waits."""
    for _turn in range(10):
        await asyncio.sleep(0)


async def take(turns: Turns, *names: str) -> None:
    async with turns.take(*names):
        pass


def test_a_task_takes_its_own_turn_again_and_keeps_it_to_the_end() -> None:
    async def run() -> None:
        turns = Turns()
        async with turns.take("a", "b"):
            async with turns.take("b"), turns.take("a", "b"):
                pass
            other = asyncio.create_task(take(turns, "b"))
            await settle()
            assert not other.done()
        await asyncio.wait_for(other, 1)

    asyncio.run(run())


def test_a_task_that_the_holder_has_started_waits_as_others_do() -> None:
    async def run() -> None:
        turns = Turns()
        async with turns.take("a"):
            child = asyncio.create_task(take(turns, "a"))
            await settle()
            assert not child.done()
        await asyncio.wait_for(child, 1)

    asyncio.run(run())


def test_a_holder_may_not_take_further_turns() -> None:
    async def run() -> None:
        turns = Turns()
        async with turns.take("a"):
            with pytest.raises(RuntimeError, match="wants that of"):
                await take(turns, "a", "b")
        await take(turns, "a", "b")

    asyncio.run(run())


def test_a_task_that_is_cancelled_while_it_waits_leaves_no_turn_taken() -> None:
    async def run() -> None:
        turns = Turns()
        async with turns.take("b"):
            waiting = asyncio.create_task(take(turns, "a", "b"))
            await settle()
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            await asyncio.wait_for(asyncio.create_task(take(turns, "a")), 1)
        await asyncio.wait_for(asyncio.create_task(take(turns, "a", "b")), 1)

    asyncio.run(run())


def test_crossing_wishes_do_not_lock_each_other_out() -> None:
    async def run() -> None:
        turns = Turns()

        async def hold(*names: str) -> None:
            async with turns.take(*names):
                await settle()

        wishes = [("a", "b"), ("b", "a"), ("c", "a"), ("b", "c"), ("a", "b", "c")]
        await asyncio.wait_for(asyncio.gather(*(hold(*names) for names in wishes)), 1)

    asyncio.run(run())
