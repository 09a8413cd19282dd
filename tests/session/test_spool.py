"""Requests from inside a session: how many the daemon serves at a time."""

import asyncio
import os
from pathlib import Path

import pytest

from waypoint.terminal.hooks.run_folder import RunFolder, Spare
from waypoint.terminal.inside.spool import BELL, Answer, Spool

CLIENTS = 40
AT_ONCE = 8


def ask(folder: Path, number: int) -> int:
    """Put a request as a client does, and return the descriptor from which its answer can be read."""
    answer = folder / f"a.{number}.1"
    os.mkfifo(answer)
    (folder / f"r.{number}.1").write_text("ps\n")
    return os.open(answer, os.O_RDONLY | os.O_NONBLOCK)


async def until_served(folder: Path) -> None:
    while any(name[0] in "rw" for name in os.listdir(folder)):
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("rings", [1, CLIENTS])
async def test_a_flood_of_requests_is_served_in_turn_and_whole(tmp_path: Path, rings: int) -> None:
    in_flight, most = 0, 0

    async def serve(words: list[str]) -> Answer:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.01)
        in_flight -= 1
        return Answer(0, f"{words}")

    fd = os.open(tmp_path, os.O_RDONLY)
    spool = Spool(RunFolder(fd, Spare("/dev/shm", lambda: os.open("/dev/shm", os.O_RDONLY))))
    answers = []
    try:
        spool.open(serve)
        answers = [ask(tmp_path, number) for number in range(CLIENTS)]
        with (tmp_path / BELL).open("w") as bell:
            for _ in range(rings):
                bell.write("!")
                bell.flush()
                await asyncio.sleep(0)
            await asyncio.wait_for(until_served(tmp_path), 20)
        assert most == AT_ONCE
        assert [os.read(answer, 100) for answer in answers] == [b"0\n['ps']"] * CLIENTS
    finally:
        spool.close()
        for answer in (fd, *answers):
            os.close(answer)
