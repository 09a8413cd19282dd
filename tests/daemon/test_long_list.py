"""A long history is read and encoded in a thread, so that the event loop answers other clients meanwhile."""

import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from tests.daemon.conftest import RunningServer
from tests.daemon.memory_service import MemoryService
from waypoint.daemon.http.route import Route
from waypoint.daemon.lifetime import SWITCH_S
from waypoint.model.facts import CaptureFacts
from waypoint.model.records import Capture, FilesLayer, Ref, Setting, User, layers_of
from waypoint.model.requests import LogQuery
from waypoint.records.names import Names
from waypoint.service import history
from waypoint.service.shapes import Pages

pytestmark = pytest.mark.soak(part="floods")

CAPTURES = 3000
ROUNDS = 9


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Names]:
    """A database of names with a branch of 3000 captures."""
    names = Names(tmp_path_factory.mktemp("names") / "names.db")
    user = User(name="u", uid=1, gid=1, groups=[1], home="/home/u", shell="/bin/sh")
    env = {f"VARIABLE_{number}": "x" * 40 for number in range(30)}
    setting = Setting(base="/", binds=[], net="private", user=user, cwd="/", env=env, command=[])
    with names.change("made up") as change:
        for number in range(CAPTURES):
            parents = [f"{number - 1:032x}"] if number else []
            layers = layers_of(FilesLayer(tree=f"t{number}"))
            capture = Capture(
                id=f"{number:032x}",
                branch="main",
                parents=parents,
                created=float(number),
                tier="files",
                layers=layers,
                setting=setting,
                reason="checkpoint",
            )
            change.add(capture)
        change.put("main", Ref(kind="branch", capture=f"{CAPTURES - 1:032x}"))
    yield names
    names.close()


def ask_status_meanwhile(server: RunningServer, target: str) -> tuple[bytes, float]:
    """Send `GET target`, and GET /v1/status again and again until it is answered.

    Return the body of the answer to `target` and the longest duration of a GET /v1/status.
    """
    bodies: list[bytes] = []

    def ask() -> None:
        with server.connect() as one:
            bodies.append(one.ask("GET", target).body)

    asking = threading.Thread(target=ask)
    latest = 0.0
    with server.connect() as client:
        client.ask("GET", "/v1/status")
        asking.start()
        while asking.is_alive():
            begin = time.monotonic()
            assert client.ask("GET", "/v1/status").status == 200
            latest = max(latest, time.monotonic() - begin)
    asking.join()
    return bodies[0], latest


@pytest.fixture
def as_in_a_daemon() -> Iterator[None]:
    """Use the daemon's thread switch interval, and keep the objects of other tests from the garbage collector."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("as_in_a_daemon")
def test_a_long_list_does_not_delay_other_requests(serve: Callable[..., RunningServer], names: Names) -> None:
    """The control makes the same list on the event loop, since a busy machine slows both down."""
    sessions = SimpleNamespace(resources=SimpleNamespace(names=names, trusted=None))
    home = SimpleNamespace(names=names, sessions=sessions)

    async def log(memory: MemoryService, query: LogQuery) -> Pages[CaptureFacts]:
        return await history.log(home, query)  # type: ignore[arg-type]

    async def log_on_the_loop(memory: MemoryService, query: LogQuery) -> list[CaptureFacts]:
        return [one for page in await history.log(home, query) for one in page]  # type: ignore[arg-type]

    server = serve(
        routes=(
            Route("GET", "/v1/beside", log, "In a thread", wrap="captures"),
            Route("GET", "/v1/on-the-loop", log_on_the_loop, "On the event loop", wrap="captures"),
        )
    )
    on_the_loop = [ask_status_meanwhile(server, "/v1/on-the-loop?all=1") for _ in range(3)]
    beside = [ask_status_meanwhile(server, "/v1/beside?all=1") for _ in range(ROUNDS)]
    assert len({body for body, _ in beside + on_the_loop}) == 1  # all bodies are equal
    assert beside[0][0].count(b'"capture":') == CAPTURES
    control_s = [latest for _, latest in on_the_loop]
    latest_s = [latest for _, latest in beside]
    assert statistics.median(latest_s) < min(control_s) / 3
