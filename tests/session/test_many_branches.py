"""A home with a thousand branches is listed quickly and correctly."""

import time
from collections.abc import Iterator

import msgspec
import pytest

from tests.collecting import collecting
from tests.homes import Home, open_home
from waypoint.client import Client
from waypoint.model.ids import new_id
from waypoint.model.records import Ref
from waypoint.records.names import Names

pytestmark = [pytest.mark.soak(part="timing"), pytest.mark.privileged, pytest.mark.requires("root", "overlay")]

COUNT = 1000
QUICK_S = 3.0  # how long a command may take in a home with a thousand branches


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """A home with branches b0, b1, ..., each one capture longer than the last, and the live session main."""
    with open_home("many") as fresh:
        client = Client(fresh.path)
        client.start("b0").stop()
        client.start("main")
        fresh.must("daemon", "stop")
        names = Names(fresh.path / "names.db")
        tip = names.resolve("b0")
        with names.change("make") as change:
            for number in range(1, COUNT):
                tip = msgspec.structs.replace(tip, id=new_id(), parents=[tip.id], created=tip.created + 1e-6)
                change.add(tip)
                change.put(f"b{number}", Ref(kind="branch", capture=tip.id, created=tip.created))
        names.close()
        yield fresh


def test_a_thousand_branches_are_listed_quickly(home: Home) -> None:
    with collecting() as row:
        for argv, count in (
            (["branch", "list"], COUNT + 1),
            (["log", "--all", "-n", "100000"], COUNT),
            (["log", "--all", "--graph", "-n", "100000"], COUNT),
            (["log", f"b{COUNT - 1}", "-n", "100000"], COUNT),
            (["ps", "--all"], COUNT + 1),
        ):
            with row(argv):
                home.must("ps")
                begun = time.monotonic()
                rows = home.must(*argv, "--json").json()
                assert time.monotonic() - begun < QUICK_S
                assert len(rows) == count
                begun = time.monotonic()
                text = home.must(*argv).stdout
                assert time.monotonic() - begun < QUICK_S
                assert len(text.splitlines()) >= count


def test_among_a_thousand_branches_sessions_start_fork_and_stop_quickly(home: Home) -> None:
    client = Client(home.path)
    begun = time.monotonic()
    client.start(f"b{COUNT // 2}")
    client.fork(f"b{COUNT // 2 + 1}", "f1")
    client.session("f1").stop(discard=True)
    client.session(f"b{COUNT // 2}").stop()
    assert time.monotonic() - begun < QUICK_S
    assert len(client.history.branches()) == COUNT + 1
