"""Trials of the machine block for seconds: they have threads of their own, and end when nobody wants their answer."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import wait_until
from waypoint.model.facts import Capability
from waypoint.service import activity
from waypoint.setup import trials

LEFT_OUT = ["/mnt/nas (nfs4: not a local file system)", "/boot/efi (vfat: ...)"]
HOME: Any = SimpleNamespace(path="/nowhere", left_out=lambda: LEFT_OUT)
ANSWER = [Capability(name="overlay", state="ok")]
DEADLINE_S = 2.0


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """One event for each trial that has begun; the trial ends when it is set, or when its process is killed."""
    events: list[threading.Event] = []

    def try_everything(_home: object, *, on_start: Callable[[Any], None]) -> list[Capability]:
        end = threading.Event()
        on_start(SimpleNamespace(kill=end.set))
        events.append(end)
        assert end.wait(10 * DEADLINE_S)
        return ANSWER

    monkeypatch.setattr(trials, "try_everything", try_everything)
    return events


def test_trials_take_no_thread_that_others_need(begun: list[threading.Event]) -> None:
    async def try_meanwhile() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        asked = [asyncio.create_task(activity.doctor(HOME)) for _ in range(5)]
        try:
            await asyncio.sleep(0)  # the trials have been asked for
            assert await asyncio.wait_for(asyncio.to_thread(lambda: "at once"), DEADLINE_S) == "at once"
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(try_meanwhile())


def test_a_trial_that_waits_for_its_turn_is_cancelled_at_once(begun: list[threading.Event]) -> None:
    async def cancel_the_last() -> None:
        first = [asyncio.create_task(activity.doctor(HOME)) for _ in range(2)]
        await asyncio.to_thread(wait_until, lambda: len(begun) == 2, "two trials have begun", DEADLINE_S)
        last = asyncio.create_task(activity.doctor(HOME))
        await asyncio.sleep(0)
        last.cancel()
        await asyncio.wait([last], timeout=DEADLINE_S)
        assert last.cancelled()
        for end in begun:
            end.set()
        assert [rows[:-1] for rows in await asyncio.gather(*first)] == [ANSWER, ANSWER]
        assert len(begun) == 2

    asyncio.run(cancel_the_last())


def test_what_of_the_machine_is_in_no_session_is_told(begun: list[threading.Event]) -> None:
    async def try_once() -> list[Capability]:
        trial = asyncio.ensure_future(activity.doctor(HOME))
        await asyncio.to_thread(wait_until, lambda: begun, "the trial has begun")
        begun[0].set()
        return await trial

    row = asyncio.run(try_once())[-1]
    assert (row.name, row.state, row.required_for) == ("what is mounted here", "degraded", "optional")
    assert all(f"not in the session: {line}" in row.why for line in LEFT_OUT)
