"""Requests from inside a session: how many the daemon serves at a time."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, wait_until
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


def is_served(folder: Path) -> bool:
    return not any(name[0] in "rw" and ".00." not in name for name in os.listdir(folder))


@pytest.mark.parametrize("rings", [1, CLIENTS])
async def test_a_flood_of_requests_is_served_in_turn_and_whole(tmp_path: Path, rings: int) -> None:
    in_flight, most = 0, 0

    async def serve(words: list[str]) -> Answer:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        for _ in range(20):  # others come in between
            await asyncio.sleep(0)
        in_flight -= 1
        return Answer(0, f"{words}")

    fd = os.open(tmp_path, os.O_RDONLY)
    spool = Spool(RunFolder(fd, Spare("/dev/shm", lambda: os.open("/dev/shm", os.O_RDONLY))))
    answers = []
    try:
        spool.open(serve)
        for number in range(2 * AT_ONCE):  # requests that cannot be taken, which somebody in the session has made
            (tmp_path / f"r.00.{number}").touch()
            (tmp_path / f"w.00.{number}/full").mkdir(parents=True)
        answers = [ask(tmp_path, number) for number in range(CLIENTS)]
        with (tmp_path / BELL).open("w") as bell:
            for _ in range(rings):
                bell.write("!")
                bell.flush()
                await asyncio.sleep(0)
            await asyncio.to_thread(wait_until, lambda: is_served(tmp_path), "all are served", PATIENCE_S)
        assert most == AT_ONCE
        assert [os.read(answer, 100) for answer in answers] == [b"0\n['ps']"] * CLIENTS
    finally:
        spool.close()
        for answer in (fd, *answers):
            os.close(answer)
