"""The ports of a session stay published although its forwarding program cannot be started at once."""

import asyncio
import os
from pathlib import Path

import pytest

from waypoint.egress import published
from waypoint.egress.published import Publisher, Target
from waypoint.linux.tasks import procfs
from waypoint.model.records import Published


def test_a_program_that_could_not_be_started_is_started_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []
    started = asyncio.Event()

    def run(_owner: int, _mounts: int, target: Target, _ports: object) -> object:
        tries.append(publisher.why_not(target.session))
        if len(tries) > 2:
            publisher_loop.call_soon_threadsafe(started.set)
        raise OSError(11, os.strerror(11))

    async def work() -> None:
        nonlocal publisher, publisher_loop
        publisher, publisher_loop = Publisher(0, None), asyncio.get_running_loop()
        target = Target("s", "main", os.getpid(), procfs.start_ticks(os.getpid()), tmp_path)
        wanted = publisher.take("s", [Published(session=80)], exactly=True, privileged=True)
        publisher.begin(target, wanted)
        await asyncio.wait_for(started.wait(), 20)
        await publisher.close()

    publisher: Publisher
    publisher_loop: asyncio.AbstractEventLoop
    monkeypatch.setattr(published, "_run", run)
    monkeypatch.setattr(published, "RESTART_S", 0)
    asyncio.run(work())
    assert tries[1] == os.strerror(11)
