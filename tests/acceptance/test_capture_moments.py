"""A capture is whole at whatever moment of a command it is taken."""

import threading
from collections.abc import Callable

import pytest

from tests.acceptance.sessions import session
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("zsh", "criu", "cgroup2")]

COUNT = 12


@pytest.fixture(params=["person", "zsh_person"])
def user(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).name)


def without_pause(home: Home, branch: str, over: threading.Event) -> Callable[[], None]:
    """One command after the other in the session's shell, until `over` is set."""

    def work() -> None:
        shell = Client(home.path).session(branch)
        while not over.is_set():
            done = shell.exec("n=$((n + 1)); echo done", wait_prompt_s=PATIENCE_S)
            assert (done.output, done.exit) == (b"done\n", 0)

    return work


def test_forks_answer_whose_capture_was_made_while_commands_came_without_pause(home: Home, user: str) -> None:
    client = Client(home.path)
    with session(home, user) as branch:
        client.session(branch).exec("kept=yes; n=0")
        over = threading.Event()
        busy = threading.Thread(target=without_pause(home, branch, over))
        busy.start()
        try:
            asked = client.session(branch)
            wait_until(lambda: asked.exec("echo $n", wait_prompt_s=PATIENCE_S).output != b"0\n", "commands come")
            for number in range(COUNT):
                name = f"{branch}-{number}"
                assert client.session(branch).checkpoint(name, tier="live").tier == "live"
                (copy,) = client.fork(name, f"{name}-copy")
                seen = copy.exec("echo $kept $((n > 0))", wait_prompt_s=PATIENCE_S)
                assert (seen.output, seen.exit) == (b"yes 1\n", 0)
                copy.stop(discard=True)
        finally:
            over.set()
            busy.join()
