"""How the daemon reads and answers requests from inside a session."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, wait_until
from waypoint.terminal.hooks.run_folder import RunFolder, Spare
from waypoint.terminal.inside.inbox import Inbox, Taken, mark_captured
from waypoint.terminal.inside.spool import BELL, Answer, Spool
from waypoint.terminal.shell.asked import clear_unread

CLIENTS = 40
AT_ONCE = 8


class Inside:
    """The run folder of a session, with the spool that serves the session's requests."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.fd = os.open(folder, os.O_RDONLY)
        self.spool = Spool(
            RunFolder(self.fd, Spare("/dev/shm", lambda: os.open("/dev/shm", os.O_RDONLY))), clear_unread
        )
        self._stack = stack
        stack.callback(os.close, self.fd)
        stack.callback(self.spool.close)

    def ask(self, number: int) -> int:
        """Write a request as a client does, and return the descriptor from which its answer can be read."""
        path = self.folder / f"a.{number}.1"
        os.mkfifo(path)
        written = self.folder / f"new.{number}"
        written.write_text("ps\n")
        written.rename(self.folder / f"r.{number}.1")  # renamed, since the daemon may read it at once
        answer = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._stack.callback(os.close, answer)
        return answer

    async def wait_served(self) -> None:
        await asyncio.to_thread(wait_until, self._is_served, "all requests are served", PATIENCE_S)

    def _is_served(self) -> bool:
        return not any(name[0] in "crw" and ".00." not in name for name in os.listdir(self.folder))


@contextmanager
def opened(folder: Path) -> Iterator[Inside]:
    """Yield the run folder in a running event loop, and close its spool at the end."""
    with ExitStack() as stack:
        yield Inside(folder, stack)


@pytest.mark.parametrize("rings", [1, CLIENTS])
async def test_a_flood_of_requests_is_served_a_few_at_a_time(tmp_path: Path, rings: int) -> None:
    in_flight, most = 0, 0

    async def serve(words: list[str]) -> Answer:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        for _ in range(20):  # lets other requests be served meanwhile
            await asyncio.sleep(0)
        in_flight -= 1
        return Answer(0, f"{words}")

    with opened(tmp_path) as inbox:
        inbox.spool.open(serve)
        for number in range(2 * AT_ONCE):  # unreadable requests, as a session could make them
            (inbox.folder / f"r.00.{number}").touch()
            (inbox.folder / f"w.00.{number}/full").mkdir(parents=True)
        answers = [inbox.ask(number) for number in range(CLIENTS)]
        with (inbox.folder / BELL).open("w") as bell:
            for _ in range(rings):
                bell.write("!")
                bell.flush()
                await asyncio.sleep(0)
            await inbox.wait_served()
        assert 1 < most <= AT_ONCE
        assert [os.read(answer, 100) for answer in answers] == [b"0\n['ps']"] * CLIENTS


async def test_requests_in_flight_at_a_capture_are_answered_and_not_served_in_copies(tmp_path: Path) -> None:
    """If the requests were served, each copy would carry them out again."""
    served: list[list[str]] = []

    async def serve(words: list[str]) -> Answer:
        served.append(words)
        return Answer(0, "served")

    with opened(tmp_path) as inbox:
        answers = [inbox.ask(number) for number in range(2 * AT_ONCE)]
        (inbox.folder / "r.00.1").write_text("ps\n")
        (inbox.folder / "c.00.1").mkdir()  # made by the session, so that the request cannot be renamed
        mark_captured(inbox.fd)
        inbox.spool.open(serve, Answer(3, "restored"))
        await inbox.wait_served()
        assert [os.read(answer, 100) for answer in answers] == [b"3\nrestored"] * len(answers)
        later = inbox.ask(2 * AT_ONCE)
        (inbox.folder / BELL).write_text("!")
        await inbox.wait_served()
        assert os.read(later, 100) == b"0\nserved"
        assert served == [["ps"]]


async def test_a_folder_that_cannot_be_read_for_a_moment_is_read_again(
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
    with opened(tmp_path) as inbox:
        answer = inbox.ask(1)
        inbox.spool.open(serve)
        await inbox.wait_served()
        assert os.read(answer, 100) == b"0\nserved"


@pytest.mark.parametrize(
    ("kind", "words", "code"),
    [("w", "checkpoint x", "failure"), ("r", f"checkpoint x -m {'long' * 1200}", "usage"), ("r", "ps", "failure")],
)
@pytest.mark.parametrize("as_json", [False, True])
async def test_a_request_that_is_not_served_gets_an_error(
    tmp_path: Path, kind: str, words: str, code: str, *, as_json: bool
) -> None:
    """A request begun by an earlier daemon, one that is too long, and one for which the daemon has no disk space."""

    async def serve(words: list[str]) -> Answer:
        raise OSError(28, "No space left on device")

    verb, *rest = words.split()
    with opened(tmp_path) as inbox:
        answer = inbox.ask(1)
        (inbox.folder / "r.1.1").unlink()
        lines = [verb, *(["--json"] if as_json else []), *rest]
        (inbox.folder / f"{kind}.1.1").write_text("".join(f"{line}\n" for line in lines))
        inbox.spool.open(serve)
        await inbox.wait_served()
        status, _, text = os.read(answer, 5000).decode().partition("\n")
        if as_json:
            error = json.loads(text)["error"]
            assert set(error) == {"code", "exit", "tried", "on", "said", "next"}
            assert (error["code"], error["exit"]) == (code, int(status))
        else:
            assert text.startswith("waypoint: cannot ")
            assert "\n  next: " in text
        assert int(status) == (2 if code == "usage" else 125)
