"""Requests from inside a session: how many the daemon serves at a time."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, wait_until
from waypoint.terminal.hooks.run_folder import RunFolder, Spare
from waypoint.terminal.inside.inbox import Inbox, Taken, mark_captured
from waypoint.terminal.inside.spool import BELL, Answer, Spool
from waypoint.terminal.shell.asked import clear_unread

CLIENTS = 40
AT_ONCE = 8


def ask(folder: Path, number: int) -> int:
    """Put a request as a client does, and return the descriptor from which its answer can be read."""
    answer = folder / f"a.{number}.1"
    os.mkfifo(answer)
    (folder / f"r.{number}.1").write_text("ps\n")
    return os.open(answer, os.O_RDONLY | os.O_NONBLOCK)


def spool_of(fd: int, tidy: Callable[[RunFolder], None] = clear_unread) -> Spool:
    return Spool(RunFolder(fd, Spare("/dev/shm", lambda: os.open("/dev/shm", os.O_RDONLY))), tidy)


def is_served(folder: Path) -> bool:
    return not any(name[0] in "crw" and ".00." not in name for name in os.listdir(folder))


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
    spool = spool_of(fd)
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


async def test_what_was_captured_before_it_was_served_is_answered_and_never_served(tmp_path: Path) -> None:
    """Else each copy of the session would carry out what its original was asked for, after it has told the client that
    it was restored. That is so whichever daemon is the first to look at the copy.
    """
    served: list[list[str]] = []

    async def serve(words: list[str]) -> Answer:
        served.append(words)
        return Answer(0, "served")

    fd = os.open(tmp_path, os.O_RDONLY)
    spool = spool_of(fd)
    answers = [ask(tmp_path, number) for number in range(2 * AT_ONCE)]
    later = -1
    (tmp_path / "r.00.1").write_text("ps\n")
    (tmp_path / "c.00.1").mkdir()  # by somebody in the session, so that the request keeps its name
    try:
        mark_captured(fd)
        spool.open(serve, Answer(3, "restored"))
        await asyncio.to_thread(wait_until, lambda: is_served(tmp_path), "all are answered", PATIENCE_S)
        assert [os.read(answer, 100) for answer in answers] == [b"3\nrestored"] * len(answers)
        later = ask(tmp_path, 2 * AT_ONCE)
        (tmp_path / BELL).write_text("!")
        await asyncio.to_thread(wait_until, lambda: is_served(tmp_path), "the next is served", PATIENCE_S)
        assert os.read(later, 100) == b"0\nserved"
        assert served == [["ps"]]
    finally:
        spool.close()
        for descriptor in (fd, later, *answers):
            if descriptor >= 0:
                os.close(descriptor)


async def test_a_folder_that_cannot_be_read_for_a_moment_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Inbox.take
    failures = [OSError(24, "Too many open files")]

    def take(inbox: Inbox, most: int) -> Taken:
        if failures:
            raise failures.pop()
        return taken(inbox, most)

    async def serve(words: list[str]) -> Answer:
        return Answer(0, "served")

    monkeypatch.setattr(Inbox, "take", take)
    fd = os.open(tmp_path, os.O_RDONLY)
    spool, answer = spool_of(fd), ask(tmp_path, 1)
    try:
        spool.open(serve)
        await asyncio.to_thread(wait_until, lambda: is_served(tmp_path), "it is served", PATIENCE_S)
        assert os.read(answer, 100) == b"0\nserved"
    finally:
        spool.close()
        os.close(answer)
        os.close(fd)


@pytest.mark.parametrize(
    ("kind", "words", "code"),
    [("w", "checkpoint x", "failure"), ("r", f"checkpoint x -m {'long' * 1200}", "usage"), ("r", "ps", "failure")],
)
@pytest.mark.parametrize("as_json", [False, True])
async def test_what_was_not_served_is_told_as_every_error(
    tmp_path: Path, kind: str, words: str, code: str, *, as_json: bool
) -> None:
    """A request that another daemon had begun, one that is too long, and one that fails in the daemon's own files."""

    async def serve(words: list[str]) -> Answer:
        raise OSError(28, "No space left on device")

    fd = os.open(tmp_path, os.O_RDONLY)
    spool = spool_of(fd)
    verb, *rest = words.split()
    answer = ask(tmp_path, 1)
    try:
        (tmp_path / "r.1.1").unlink()
        lines = [verb, *(["--json"] if as_json else []), *rest]
        (tmp_path / f"{kind}.1.1").write_text("".join(f"{line}\n" for line in lines))
        spool.open(serve)
        await asyncio.to_thread(wait_until, lambda: is_served(tmp_path), "it is answered", PATIENCE_S)
        status, _, text = os.read(answer, 5000).decode().partition("\n")
    finally:
        spool.close()
        os.close(answer)
        os.close(fd)
    if as_json:
        error = json.loads(text)["error"]
        assert set(error) == {"code", "exit", "tried", "on", "said", "next"}
        assert (error["code"], error["exit"]) == (code, int(status))
    else:
        assert text.startswith("waypoint: cannot ")
        assert "\n  next: " in text
    assert int(status) == (2 if code == "usage" else 125)
