"""Profiles that are tried: texts of whoever was let in."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from waypoint.model.requests import ProfileTestRequest
from waypoint.service import profiles


def test_they_are_parsed_one_at_a_time_and_off_the_event_loop() -> None:
    turn, threads = threading.Lock(), set()

    def parse(name: str, text: str) -> None:
        assert turn.acquire(blocking=False)
        threads.add(threading.current_thread())
        threading.Event().wait(0.01)  # long enough for another one to begin
        turn.release()

    async def try_several() -> list[Any]:
        home: Any = SimpleNamespace(profiles=SimpleNamespace(with_one=parse))
        request = ProfileTestRequest(text="")
        return await asyncio.gather(*(profiles.test_profiles(home, request) for _ in range(8)))

    assert asyncio.run(try_several()) == [[]] * 8
    assert threading.main_thread() not in threads
